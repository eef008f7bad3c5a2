"""Owns the entry point: the tree of commands, and what happens to an error on its way out.

Nothing heavy is imported here. A stack trace never reaches a user for an error that we raise.
"""

import os
import sys
from typing import NoReturn

import click

from moldau import __version__
from moldau.cli.click_groups import LazyCommand, LazyGroup
from moldau.cli.errors import ExitCode, exit_code, report, report_error
from moldau.model.errors import MoldauError

_COMMANDS = {
    "dev": LazyCommand("moldau.cli.broker:dev", "Start one broker for development, here and now."),
    "cluster": LazyCommand(
        "moldau.cli.cluster.commands:cluster", "Run several brokers on this machine."
    ),
    "broker": LazyCommand(
        "moldau.cli.broker:broker", "Start a broker; list, drain and remove them."
    ),
    "topic": LazyCommand(
        "moldau.cli.topic:topic", "Create, list, describe, alter and delete topics."
    ),
    "partition": LazyCommand(
        "moldau.cli.partition:partition", "Move partitions to other brokers, and their leaders."
    ),
    "produce": LazyCommand("moldau.cli.messages.produce:produce", "Send messages, a line each."),
    "consume": LazyCommand(
        "moldau.cli.messages.consume:consume", "Print messages, alone or in a group."
    ),
    "tail": LazyCommand(
        "moldau.cli.messages.tail:tail", "Print the last messages and follow the end."
    ),
    "queue": LazyCommand(
        "moldau.cli.queue.commands:queue", "Use topics as work queues: send, work, redrive."
    ),
    "proxy": LazyCommand(
        "moldau.cli.proxy:proxy", "Serve the queue API for clients that know no brokers."
    ),
    "pipeline": LazyCommand(
        "moldau.cli.pipeline.commands:pipeline",
        "Archive, compact, replay, aggregate, audit, on Spark.",
    ),
    "group": LazyCommand(
        "moldau.cli.group:group", "List and describe consumer groups and their lag."
    ),
    "transaction": LazyCommand(
        "moldau.cli.transaction:transaction", "List, describe and abort transactions."
    ),
    "config": LazyCommand(
        "moldau.cli.config:config", "Write a configuration file; show what is in force."
    ),
    "bench": LazyCommand("moldau.cli.bench.command:bench", "Measure throughput and latency."),
    "doctor": LazyCommand("moldau.cli.doctor:doctor", "Look for what keeps a broker from working."),
    "completion": LazyCommand(
        "moldau.cli.completion:completion", "Print a shell completion script."
    ),
}


class _PipeClosed(Exception):
    """Whoever read our output has gone."""


class _Root(LazyGroup):
    """The tree's root. click would end the process with 1 for a closed pipe; we do not."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosed from error


@click.group(
    name="moldau",
    cls=_Root,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        "moldau dev                                  # start a broker",
        "echo hello | moldau produce greetings       # in another terminal",
        "moldau consume greetings --from-beginning",
    ),
)
@click.version_option(__version__, "--version", message="moldau %(version)s")
def cli() -> None:
    """A distributed message queue and log that every Kafka client can use."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="moldau", standalone_mode=False)
    except MoldauError as error:
        report_error(error)
        return exit_code(error)
    except click.Abort:
        # Also what click makes of Ctrl-C.
        click.echo(err=True)
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        _report_usage(error)
        return error.exit_code
    except _PipeClosed:
        return _broken_pipe()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except OSError as error:
        # Files that cannot be read or written, addresses that cannot be bound.
        what = f"{error.filename}: " if error.filename else ""
        report(f"{what}{error.strerror or error}")
        return ExitCode.FAILED
    return result if isinstance(result, int) else ExitCode.OK


def _report_usage(error: click.ClickException) -> None:
    hint = getattr(error, "hint", "")
    if not hint and isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"see: {error.ctx.command_path} --help"
    # On one line: click lists choices below each other.
    message = " ".join(error.format_message().split())
    report(message[:1].lower() + message[1:].rstrip("."), hint)


def _broken_pipe() -> int:
    """`| head` has what it wanted; the interpreter must not complain when it flushes stdout."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    return ExitCode.OK


def open_standard_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr the null device for them.

    Not only for our own printing: the next file or socket to be opened would get the free number,
    and whatever writes to file 2 would then write into a log of the broker.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    # Python has None where there was nothing at its start.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def main() -> NoReturn:
    """The `moldau` command."""
    open_standard_streams()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _broken_pipe()
    sys.exit(code)
