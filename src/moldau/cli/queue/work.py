"""`moldau queue work`: runs a command for each message of a queue, or prints it."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.formats import Formatter
from moldau.cli.messages.print_options import PrintOptions, format_options
from moldau.cli.options import Duration, Integer
from moldau.cli.output import counted, say
from moldau.cli.queue.child_command import VARIABLES, run_command
from moldau.cli.queue.connect import (
    PrintableMessage,
    connected,
    group_option,
    grpc_option,
    queue_topic_argument,
)
from moldau.cli.queue.work_loop import (
    ONCE_POLL_SECONDS,
    POLL_SECONDS,
    EmptyCheck,
    RetryingPoll,
    StopRequest,
    Tally,
    WorkLoop,
)
from moldau.cli.signals import output_closed

if TYPE_CHECKING:
    from moldau.client.queue.worker import AsyncWorker

_PRINT_MESSAGES_MAX: Final = 500
"""Messages per poll when no command is run."""


@command(
    "work",
    examples=(
        "moldau queue work jobs --group resizers -- ./resize.sh",
        "moldau queue work jobs -g mailers --concurrency 4 --timeout 30s -- python3 send.py",
        "moldau queue work jobs -g test --once -f '%k=%s\\n'      # no command: print and ack",
    ),
    context_settings={"allow_interspersed_args": True},
)
@queue_topic_argument
@click.argument("command_line", metavar="[-- COMMAND [ARG...]]", nargs=-1, type=click.UNPROCESSED)
@group_option
@click.option(
    "-c",
    "--concurrency",
    type=Integer(1, 1000),
    default=1,
    show_default=True,
    help="Number of commands that run at the same time.",
)
@click.option(
    "--timeout", type=Duration(), help="Kill the command, and nack the message, after this."
)
@click.option("-n", "--count", "limit", type=Integer(1), help="Stop after N messages.")
@click.option("--once", is_flag=True, help="Exit when the queue is empty.")
@click.option(
    "--retry-delay",
    type=Duration(),
    help="Delay of the next attempt.  [default: the group's backoff]",
)
@click.option("--visibility", type=Duration(), help="Group setting: duration of a lease.")
@click.option(
    "--attempts", type=Integer(1), help="Group setting: attempts before a message is a dead letter."
)
@click.option("--dead-letter", metavar="TOPIC", help="Group setting: the dead-letter topic.")
@click.option(
    "--start",
    type=click.Choice(("earliest", "latest")),
    help="Where a new group starts.  [default: earliest]",
)
@format_options
@click.option("-q", "--quiet", is_flag=True, help="Print no failures; see the exit code.")
@grpc_option
def work(
    topic: str,
    command_line: tuple[str, ...],
    group: str,
    concurrency: int,
    timeout: float | None,
    limit: int | None,
    once: bool,
    retry_delay: float | None,
    visibility: float | None,
    attempts: int | None,
    dead_letter: str | None,
    start: Literal["earliest", "latest"] | None,
    printing: PrintOptions,
    quiet: bool,
    addresses: str,
) -> int:
    """Run a command for each message of a topic, or print and ack the messages.

    The command gets the value on its standard input, and MOLDAU_TOPIC, MOLDAU_PARTITION,
    MOLDAU_OFFSET, MOLDAU_TIMESTAMP, MOLDAU_KEY, MOLDAU_HEADERS, MOLDAU_ATTEMPT and MOLDAU_GROUP in
    its environment. If it exits with 0, the message is acked. Otherwise it is nacked, with the last
    line of its standard error as the reason, and redelivered until it becomes a dead letter.
    """
    resolved = _resolved(command_line)
    printed = printing.make()

    environment = own_environment(os.environ)

    async def handle(message: Any) -> str:
        return await run_command(
            resolved, message, group, environment=environment, seconds_max=timeout
        )

    async def working() -> tuple[Tally, StopRequest]:
        async with connected(addresses) as client:
            worker = await client.connect(
                group,
                topic,
                visibility=visibility,
                attempts=attempts,
                dead_letter=dead_letter,
                start=start,
            )

            async def ready() -> int:
                found = (await client.stats(group)).partitions
                return sum(each.ready for each in found if each.topic == topic)

            drained = EmptyCheck(ready) if once else None
            # Until here Ctrl-C may end the process: no message is leased yet.
            async with worker:
                with _signals() as stopping:
                    if not resolved:
                        printer = Printer(worker, printed.formatter, stopping, drained)
                        return await printer.run(limit), stopping
                    loop = WorkLoop(
                        worker,
                        handle,
                        stopping,
                        concurrency=concurrency,
                        messages_max=limit,
                        drained=drained,
                        retry_seconds=retry_delay,
                        quiet=quiet,
                    )
                    return await loop.run(), stopping

    tally, stopping = asyncio.run(working())
    if resolved and not quiet:
        lost = f", {tally.lost} not settled" if tally.lost else ""
        say(f"{counted(tally.done, 'message')} done, {tally.failed} failed{lost}")
    if stopping.at_once.is_set():
        return ExitCode.INTERRUPTED
    # For a worker without an end, failed messages are normal.
    is_bounded = once or limit is not None
    return ExitCode.FAILED if is_bounded and (tally.failed or tally.lost) else ExitCode.OK


def _resolved(command_line: tuple[str, ...]) -> list[str]:
    """The command with its full path, resolved once, before a message is leased."""
    if not command_line:
        return []
    found = shutil.which(command_line[0])
    if found is None:
        raise CommandError(
            f"command not found: {command_line[0]}",
            hint="a script needs its path and execute permission: chmod +x ./script",
            code=ExitCode.USAGE,
        )
    return [found, *command_line[1:]]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the variables of a message: workers may be nested."""
    return {name: value for name, value in environment.items() if name not in VARIABLES}


@contextmanager
def _signals() -> Iterator[StopRequest]:
    """Within the block, SIGINT and SIGTERM stop the loop; the second one kills its commands."""
    stopping, loop = StopRequest(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stopping.signal)
    try:
        yield stopping
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Printer:
    """Prints messages, and acks them once they are written to stdout."""

    def __init__(
        self,
        worker: "AsyncWorker",
        formatter: Formatter,
        stopping: StopRequest,
        drained: EmptyCheck | None,
    ) -> None:
        self._worker = worker
        self._drained = drained
        self._poll_call = RetryingPoll(worker) if drained is None else worker.poll
        self._format = formatter
        self._stopping = stopping

    async def run(self, messages_max: int | None) -> Tally:
        tally = Tally()
        while not self._stopping.requested.is_set():
            room = _PRINT_MESSAGES_MAX if messages_max is None else messages_max - tally.done
            if room <= 0:
                break
            seconds = POLL_SECONDS if self._drained is None else ONCE_POLL_SECONDS
            messages = await self._poll(min(room, _PRINT_MESSAGES_MAX), seconds)
            if messages:
                await self._print(messages, tally)
            elif output_closed():
                raise BrokenPipeError
            if self._drained is not None and await self._drained.after(len(messages)):
                break
        return tally

    async def _poll(self, room: int, seconds: float) -> list[Any]:
        """The available messages; empty once stopped: leaving the group returns the rest."""
        polling = asyncio.ensure_future(self._poll_call(room, seconds))
        requested = asyncio.ensure_future(self._stopping.requested.wait())
        await asyncio.wait({polling, requested}, return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        if not polling.done():
            polling.cancel()
            await asyncio.wait({polling})
        return [] if polling.cancelled() else polling.result()

    async def _print(self, messages: list[Any], tally: Tally) -> None:
        stdout = sys.stdout.buffer
        for message in messages:
            stdout.write(self._format(PrintableMessage(message)))
        stdout.flush()
        refused = await self._worker.ack(messages)
        tally.done += len(messages) - len(refused)
        tally.lost += len(refused)
        for each in refused:
            say(f"printed but not acked, will be redelivered: {each.error()}")
