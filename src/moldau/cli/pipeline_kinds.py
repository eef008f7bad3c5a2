"""Owns how commands are made of kinds of pipelines: `run KIND`, `plan KIND`.

A group of them knows the kinds by name and imports the small module with a kind's command line
when it is called. What is no kind may be `-f` and a file.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.errors import CommandError
from moldau.cli.lazy import Command, ExamplesMixin, NoSuchCommand
from moldau.cli.pipeline_common import (
    TRIGGER_SECONDS_DEFAULT,
    Common,
    default_name,
    running_options,
    told_conf,
    trigger_option,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from moldau.spark.pipelines.spec import Settings

# A name that no kind can have: the command behind it is found by its first word.
_FILE: Final = "@file"
_FILE_OPTIONS: Final = ("-f", "--file")

Act = Callable[["Settings", Mapping[str, Any]], int]
"""What a verb does with settings and with the values of its own options; the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """run or plan."""

    name: str
    act: Act
    options: Sequence[Callable[[Any], Any]]
    """Of the verb itself, for every kind."""


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
        from moldau.spark.pipelines.registry import kinds

        return [kind.name for kind in kinds().values() if kind.command]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _FILE:
            return self._file_command
        from moldau.spark.pipelines.registry import kinds

        kind = kinds().get(cmd_name)
        if kind is None or kind.command is None:
            return None
        return kind_command(self._verb, kind.name, command_module(kind.command))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_file = args[:1] and args[0].startswith("-") and any(map(_is_file_option, args))
        return super().parse_args(ctx, [_FILE, *args] if is_file else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            # As it is typed, for its help and for hints.
            return "-f FILE" if name == _FILE else name, command, rest
        except click.UsageError as error:
            if not args or args[0].startswith("-"):
                raise
            raise NoSuchCommand(ctx, args[0], self.list_commands(ctx)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from moldau.spark.pipelines.registry import kinds

        rows = [
            (kind.name, str(command_module(kind.command).SUMMARY))
            for kind in kinds().values()
            if kind.command
        ]
        rows.append(("-f FILE", self._file_command.get_short_help_str(200)))
        with formatter.section("Kinds"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names]


def _is_file_option(word: str) -> bool:
    return word in _FILE_OPTIONS or word.startswith("--file=")


def command_module(name: str) -> ModuleType:
    """The command line of a kind. Raises CommandError if it is none."""
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the command line of a kind of pipelines is missing: {error}",
            hint="install the package that brings it again",
        ) from error
    if missing := [
        part for part in ("SUMMARY", "EXAMPLES", "OPTIONS", "settings") if not hasattr(module, part)
    ]:
        raise CommandError(f"{name} is no command line of a pipeline: no {', '.join(missing)}")
    return module


def module_of(kind: str) -> ModuleType | None:
    """The command line of a kind; None if it has none. Raises if there is no such kind."""
    from moldau.spark.pipelines.registry import find

    command = find(kind).command
    return None if command is None else command_module(command)


def kind_command(verb: Verb, kind: str, module: ModuleType) -> Command:
    """The command of a verb and a kind: the kind's options, the shared ones, the verb's."""
    own = _parameters(module.OPTIONS)
    taken = {option for parameter in own for option in parameter.opts}
    # A kind may mean something of its own by the name of an option of the verb, but not less.
    of_verb = [
        parameter
        for parameter in _parameters(verb.options)
        if not taken.intersection(parameter.opts)
    ]

    shared = (trigger_option, running_options) if goes_on(module) else (running_options,)

    def callback(**values: Any) -> int:
        told = {
            parameter.name: values.pop(parameter.name) for parameter in of_verb if parameter.name
        }
        common = common_of(kind, values, words=_words(own, values))
        return verb.act(_settings_of(module, common, values), told)

    examples = tuple(
        example.replace("moldau pipeline run ", f"moldau pipeline {verb.name} ")
        for example in module.EXAMPLES
    )
    return Command(
        kind,
        callback=callback,
        params=[*own, *_parameters(shared), *of_verb],
        examples=examples[:3],
        help=str(module.SUMMARY),
    )


def goes_on(module: ModuleType | None) -> bool:
    """Whether pipelines of this kind can go on until they are stopped."""
    return bool(getattr(module, "CONTINUOUS", True))


def _settings_of(module: ModuleType, common: Common, values: Mapping[str, Any]) -> "Settings":
    from moldau.spark.pipelines.registry import extra_missing

    try:
        settings: Settings = module.settings(common, **values)
    except ImportError as error:
        if (missing := extra_missing(error)) is None:
            raise
        raise missing from error
    return settings


def _parameters(decorators: Sequence[Callable[[Any], Any]]) -> list[click.Parameter]:
    """What click's decorators would add to a command, in the order shown."""

    def nothing() -> None: ...

    for decorator in reversed(decorators):
        decorator(nothing)
    return list(reversed(getattr(nothing, "__click_params__", [])))


def _words(parameters: Sequence[click.Parameter], values: Mapping[str, Any]) -> list[str]:
    """What a pipeline is named by: its arguments, or else the options that it cannot be without."""
    arguments = [each for each in parameters if isinstance(each, click.Argument)]
    needed = [each for each in parameters if each.required]
    words: list[str] = []
    for parameter in arguments or needed[:1]:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, click.Path) and isinstance(value, str):
            words.append(Path(value).absolute().name)
        elif parameter.metavar == "LOCATION" and isinstance(value, str) and "://" not in value:
            words.append(_place(value))
        elif isinstance(value, str | Path):
            words.append(str(value))
        elif isinstance(value, list | tuple):
            words += [str(item) for item in value if isinstance(item, str | Path)]
    return words


def _place(folder: str) -> str:
    """Its last name, and a mark: the same folder has it from everywhere, and no other one."""
    whole = Path(folder).absolute()
    return f"{whole.name}-{hashlib.sha256(os.path.normpath(whole).encode()).hexdigest()[:8]}"


def common_of(kind: str, values: dict[str, Any], *, words: Sequence[str]) -> Common:
    """Takes the shared options out of `values`."""
    from moldau.spark.pipelines.home import check_name, home_at

    name = check_name(values.pop("name") or default_name(kind, words))
    trigger_seconds = values.pop("trigger_seconds", None)
    return Common(
        name=name,
        bootstrap=values.pop("brokers"),
        home=home_at(values.pop("home"), name),
        master=values.pop("master"),
        continuous=trigger_seconds is not None,
        trigger_seconds=(TRIGGER_SECONDS_DEFAULT if trigger_seconds is None else trigger_seconds),
        options=dict(values.pop("options")),
        conf=told_conf(values),
    )
