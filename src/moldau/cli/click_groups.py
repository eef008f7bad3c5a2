"""click groups that import a command only when it is called, and commands with examples.

`moldau --help` and shell completion must not import the Kafka client or the server, so a group
knows only the name, summary and module of each command.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Long enough for a sentence: summaries are wrapped, never shortened.
_SUMMARY_CHARACTERS_MAX = 200


class NoSuchCommand(click.UsageError):
    """An unknown command, with the most similar one as hint."""

    def __init__(self, ctx: click.Context, name: str, known: Sequence[str]) -> None:
        import difflib

        super().__init__(f"no such command: {ctx.command_path} {name}", ctx=ctx)
        close = difflib.get_close_matches(name, known, n=1)
        self.hint = f"did you mean `{ctx.command_path} {close[0]}`?" if close else ""


class ExamplesMixin:
    """Help pages that end with examples."""

    examples: Sequence[str] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.examples:
            return
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Command(ExamplesMixin, click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options of a section stand below the others, under its name."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            # Arguments stand in the usage line.
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for name in sorted(sections, key=lambda name: name != "Options"):
            with formatter.section(name):
                formatter.write_dl(sections[name])


class LazyGroup(ExamplesMixin, click.Group):
    """A group whose commands are imported on use.

    `lazy` has the module:attribute, below `package`, and the summary of each.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        package: str = "moldau.cli",
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}
        self._package = package
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the definition, unless some are imported: then by name."""
        imported = super().list_commands(ctx)
        return sorted({*self._lazy, *imported}) if imported else list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(import_module(f"{self._package}.{module}"), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args or args[0].startswith("-"):
                raise
            raise NoSuchCommand(ctx, args[0], self.list_commands(ctx)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._summaries(ctx))

    def _summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Of each command that is shown; no command is imported for it."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self._lazy:
                rows.append((name, self._lazy[name][1]))
            elif (command := super().get_command(ctx, name)) is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(_SUMMARY_CHARACTERS_MAX)))
        return rows

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Names with summaries; click would import every command."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, summary in self._summaries(ctx)
            if name.startswith(incomplete)
        ]


def command(
    name: str, *, examples: Sequence[str], **kwargs: Any
) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` with examples."""
    return click.command(name, cls=Command, examples=examples, **kwargs)
