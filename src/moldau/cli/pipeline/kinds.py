"""Builds the commands `run KIND` and `plan KIND`, and finds `-f FILE`."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from moldau.cli.click_groups import Command, ExamplesMixin, NoSuchCommand
from moldau.cli.pipeline.aggregate import read_query
from moldau.cli.pipeline.kind_options import kind_options
from moldau.cli.pipeline.run_options import (
    default_name,
    running_options,
    source_connection,
    spark_conf,
    trigger_option,
)
from moldau.spark.pipelines.kinds import KINDS
from moldau.spark.pipelines.spec import PipelineSettings

# The name of the command for -f; no kind can have it.
_FILE: Final = "@file"
_FILE_OPTIONS: Final = ("-f", "--file")

Act = Callable[[PipelineSettings, Mapping[str, Any]], int]
"""Acts on the settings and the values of the verb's own options; returns the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """run or plan."""

    name: str
    act: Act
    options: Sequence[Callable[[Any], Any]]
    """The verb's own options, for every kind."""


class KindGroup(ExamplesMixin, click.Group):
    """The kinds as commands of a verb."""

    def __init__(
        self, *, verb: Verb, file_command: click.Command, examples: Sequence[str], help: str
    ) -> None:
        super().__init__(verb.name, help=help)
        self.subcommand_metavar = "KIND | -f FILE …"
        self.examples = examples
        self._verb = verb
        self._file_command = file_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _FILE:
            return self._file_command
        return kind_command(self._verb, cmd_name) if cmd_name in KINDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_file = args[:1] and args[0].startswith("-") and any(map(_is_file_option, args))
        return super().parse_args(ctx, [_FILE, *args] if is_file else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            # As typed by the user, for help and hints.
            return "-f FILE" if name == _FILE else name, command, rest
        except click.UsageError as error:
            if not args or args[0].startswith("-"):
                raise
            raise NoSuchCommand(ctx, args[0], self.list_commands(ctx)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(kind, settings_type.summary) for kind, settings_type in KINDS.items()]
        rows.append(("-f FILE", self._file_command.get_short_help_str(200)))
        with formatter.section("Kinds"):
            formatter.write_dl(rows)


def _is_file_option(word: str) -> bool:
    return word in _FILE_OPTIONS or word.startswith("--file=")


def kind_command(verb: Verb, kind: str) -> Command:
    """The command of a verb and a kind, with the options of both and the shared ones."""
    settings_type = KINDS[kind]
    own, of_verb = parameters(kind_options(settings_type)), parameters(verb.options)
    trigger = (trigger_option,) if settings_type.can_run_continuously else ()

    def callback(**values: Any) -> int:
        verb_values = {parameter.name: values.pop(parameter.name) for parameter in of_verb}
        with require_spark_extra():
            return verb.act(settings_of(kind, values, words=_words(own, values)), verb_values)

    examples = tuple(
        example.replace("moldau pipeline run ", f"moldau pipeline {verb.name} ")
        for example in settings_type.examples[:3]
    )
    return Command(
        kind,
        callback=callback,
        params=[*own, *parameters((*trigger, *running_options)), *of_verb],
        examples=examples,
        help=settings_type.summary,
    )


@contextmanager
def require_spark_extra() -> Iterator[None]:
    """Within the block, a missing package is reported as the missing extra `spark`."""
    try:
        yield
    except ModuleNotFoundError as error:
        from moldau.spark.pipelines.spark_errors import missing_extra

        raise missing_extra(error) from error


def parameters(decorators: Iterable[Callable[[Any], Any]]) -> list[click.Parameter]:
    """The parameters that click's decorators add to a command, in order."""

    def nothing() -> None: ...

    for decorator in reversed([*decorators]):
        decorator(nothing)
    return list(reversed(getattr(nothing, "__click_params__", [])))


def _words(options: Sequence[click.Parameter], values: Mapping[str, Any]) -> list[str]:
    """The words of the default name: the values of the first required option."""
    first = next(each for each in options if each.required)
    value = values[first.name or ""]
    if not isinstance(value, str):
        return list(value)
    if first.metavar == "LOCATION" and "://" not in value:
        return [_folder_name(value)]
    return [value]


def _folder_name(folder: str) -> str:
    """Its last part and a hash of its absolute path."""
    whole = Path(folder).absolute()
    return f"{whole.name}-{hashlib.sha256(os.path.normpath(whole).encode()).hexdigest()[:8]}"


def settings_of(kind: str, values: dict[str, Any], *, words: Sequence[str]) -> PipelineSettings:
    """Settings from option values of the same names; None means the default."""
    from moldau.spark.pipelines.home import check_name, home_at

    values["name"] = check_name(values["name"] or default_name(kind, words))
    values["home"] = home_at(values["home"], values["name"])
    values["bootstrap"] = values.pop("brokers")
    values["options"] = {**source_connection(), **(values.get("options") or {})}
    values["conf"] = spark_conf(values)
    values["continuous"] = values.get("trigger_seconds") is not None
    if "sql_file" in values:
        read_query(values)
    return KINDS[kind](**{name: value for name, value in values.items() if value is not None})
