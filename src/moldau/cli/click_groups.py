"""Owns the shape of our commands: groups that import a command when it is called, and examples.

`moldau --help` and tab completion must not wait for the Kafka client or the server to be imported,
so a group knows only the names of its commands, one line about each, and where they live.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# A summary is a sentence: it is wrapped where the terminal is narrow, never cut.
_SUMMARY_CHARACTERS_MAX = 200


class LazyCommand(NamedTuple):
    """A command that is not imported yet."""

    target: str
    """module:attribute"""
    summary: str


class NoSuchCommand(click.UsageError):
    """A command that does not exist, and the one that was probably meant."""

    def __init__(self, ctx: click.Context, name: str, known: Sequence[str]) -> None:
        import difflib

        super().__init__(f"no such command: {ctx.command_path} {name}", ctx=ctx)
        close = difflib.get_close_matches(name, known, n=1)
        self.hint = f"did you mean `{ctx.command_path} {close[0]}`?" if close else ""


class ExamplesMixin:
    """Help pages that end with lines to copy."""

    examples: Sequence[str] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.examples:
            return
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Command(ExamplesMixin, click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples


class LazyGroup(ExamplesMixin, click.Group):
    """A group whose commands are imported on use."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, LazyCommand] | None = None,
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no command")
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
        """From the summaries, so that nothing is imported."""
        rows = [(name, lazy.summary) for name, lazy in self._lazy.items()]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(_SUMMARY_CHARACTERS_MAX)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Names with their summaries; click would import every command for that."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-") or not self._lazy:
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=lazy.summary)
            for name, lazy in self._lazy.items()
            if name.startswith(incomplete)
        ]


def command(
    name: str, *, examples: Sequence[str], **kwargs: Any
) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` with examples."""
    return click.command(name, cls=Command, examples=examples, **kwargs)
