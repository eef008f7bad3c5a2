"""Owns the exit codes, and how an error looks: what failed and why, then what to do next."""

from enum import IntEnum

import click

from moldau.cli.output import color_wanted
from moldau.client.errors import NotFoundError, UnreachableError
from moldau.model.errors import ConfigError, CorruptionError, MoldauError, StorageError


class ExitCode(IntEnum):
    """Stable: scripts rely on them. Documented in docs/reference/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    DEFECT = 70
    STORAGE = 74
    CONFIG = 78
    INTERRUPTED = 130


class CommandError(MoldauError):
    """A command that cannot do what it was asked to, for a reason of its own."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def exit_code(error: MoldauError) -> ExitCode:
    """The exit code by which a script tells errors apart."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, StorageError | CorruptionError):
        return ExitCode.STORAGE
    if isinstance(error, UnreachableError):
        return ExitCode.UNREACHABLE
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    return ExitCode.FAILED


def report(message: str, hint: str = "") -> None:
    """Print an error, one `error:` per line of the message, and its hint."""
    color = color_wanted(err=True)
    for line in message.splitlines() or [message]:
        click.echo(click.style("error:", fg="red", bold=True) + f" {line}", err=True, color=color)
    # Errors that travel through Spark as text carry their hint in it.
    if hint and hint not in message:
        click.echo(click.style("hint:", fg="cyan", bold=True) + f"  {hint}", err=True, color=color)


def report_error(error: MoldauError) -> None:
    """Print one of ours; a list of problems keeps each hint below its problem."""
    problems = getattr(error, "problems", None)
    if problems:
        for problem in problems:
            report(problem.text, problem.hint)
    else:
        report(str(error), error.hint)
