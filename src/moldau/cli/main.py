"""The entry point: the tree of commands, and the exit code and output of every error.

Imports nothing heavy, so that `moldau --help` is fast. Our own errors print no stack trace.
"""

import os
import sys
from typing import NoReturn

import click

from moldau import __version__
from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import ExitCode, exit_code
from moldau.cli.first_process import leave_to_child
from moldau.cli.output import report, report_error
from moldau.model.compiled import described
from moldau.model.errors import MoldauError

_COMMANDS = {
    "dev": ("broker:dev", "Start one broker for development."),
    "cluster": ("cluster.commands:cluster", "Run several brokers on this machine."),
    "broker": ("broker:broker", "Start a broker; list, inspect, drain and remove brokers."),
    "top": ("top.command:top", "Watch a cluster live: health, throughput, latency, lag."),
    "ui": ("ui:ui", "Open the web console of a cluster in a browser."),
    "topic": ("topic:topic", "Create, list, describe, alter and delete topics."),
    "partition": (
        "partition:partition",
        "Move partitions to other brokers; elect preferred leaders.",
    ),
    "produce": ("messages.produce:produce", "Send messages, one per line."),
    "consume": (
        "messages.consume:consume",
        "Print messages of a topic, alone or in a consumer group.",
    ),
    "tail": ("messages.tail:tail", "Print the last messages of topics, then new ones."),
    "queue": ("queue.commands:queue", "Use topics as work queues: send, work, redrive."),
    "proxy": ("proxy:proxy", "Serve the queue API for clients that cannot route to brokers."),
    "pipeline": (
        "pipeline.commands:pipeline",
        "Archive, compact, replay, aggregate and audit topics on Spark.",
    ),
    "group": ("group:group", "List, describe, seek and delete consumer groups."),
    "backup": ("backup.commands:backup", "Back up a cluster; verify and restore backups."),
    "transaction": ("transaction:transaction", "List, describe and abort transactions."),
    "user": ("user:user", "Add, list and delete users who log in with a password."),
    "acl": ("acl:acl", "Allow and deny operations: add, list and delete ACLs."),
    "role": ("role:role", "Grant and revoke roles: named sets of ACLs."),
    "quota": ("quota:quota", "Limit what users and client ids may send and read."),
    "login": ("login:login", "Log in, and keep the token in a profile."),
    "logout": ("login:logout", "Delete the token of a profile."),
    "profile": ("profile:profile", "Keep addresses and credentials under names."),
    "config": ("config:config", "Write a configuration file; show the effective settings."),
    "certs": ("certs:certs", "Make certificates for TLS."),
    "bench": ("bench.command:bench", "Measure throughput and latency."),
    "doctor": ("doctor:doctor", "Check this machine, a configuration and a running cluster."),
    "completion": ("completion:completion", "Print a shell completion script."),
}


class _PipeClosed(Exception):
    """The program that reads our output has closed the pipe."""


class _Root(LazyGroup):
    """The root command. click would exit with 1 for a closed pipe; we exit with 0."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosed from error


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        click.echo(f"moldau {__version__} ({described()})")
        ctx.exit()


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
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether its hot path is compiled.",
)
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
    """Normal with `| head`; keep the interpreter from reporting an error when it flushes stdout."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    return ExitCode.OK


def open_standard_streams() -> None:
    """Open the null device for each of stdin, stdout and stderr that is closed.

    Otherwise the next file or socket would get its number, and a message to stderr could be
    written into a log segment.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    # Python sets the stream to None if it was closed at start.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def main() -> NoReturn:
    """The `moldau` command."""
    leave_to_child()
    open_standard_streams()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _broken_pipe()
    sys.exit(code)
