"""`moldau queue send`: sends messages from arguments or stdin, in batches."""

import asyncio
import os
import select
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.produce import LINE_BYTES_MAX, split_lines
from moldau.cli.options import Duration, Properties, pairs_option, timeout_option
from moldau.cli.output import counted, format_bytes, say
from moldau.cli.queue.connect import (
    TimestampParam,
    connected,
    grpc_option,
    queue_topic_argument,
)

if TYPE_CHECKING:
    from moldau.client.errors import ClientError, SendFailedError
    from moldau.client.queue.client import AsyncQueueClient
    from moldau.client.queue.outgoing import Outgoing

BATCH_MESSAGES_MAX: Final = 1000
_PROGRESS_SECONDS: Final = 0.25
_READ_SECONDS: Final = 0.2
_READ_BYTES: Final = 1024 * 1024


@command(
    "send",
    examples=(
        "moldau queue send jobs 'resize 1.png' 'resize 2.png'",
        "moldau queue send jobs --delay 10m -H source=cli < jobs.txt",
        "moldau queue send jobs 'good morning' --deliver-at 2026-12-24T08:00 --key greetings",
    ),
)
@queue_topic_argument
@click.argument("messages", metavar="[MESSAGE...]", nargs=-1)
@click.option("-k", "--key-separator", metavar="TEXT", help="Separates key and value in a line.")
@click.option("--key", help="The key of every message.")
@pairs_option("-H", "--header", "headers", help_text="A header of every message")
@click.option("--delay", type=Duration(), help="Deliver after this time, as 10m.")
@click.option("--deliver-at", type=TimestampParam(), metavar="TIME", help="Deliver at this time.")
@timeout_option("30s", "Deadline of a batch.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@grpc_option
def send(
    topic: str,
    messages: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    headers: Properties,
    delay: float | None,
    deliver_at: int | None,
    timeout: float,
    quiet: bool,
    addresses: str,
) -> None:
    """Send messages to a topic: the arguments, else each line of stdin."""
    if delay is not None and deliver_at is not None:
        raise CommandError("--delay and --deliver-at cannot be combined", code=ExitCode.USAGE)
    if not messages and sys.stdin.isatty() and not quiet:
        say("enter one message per line; Ctrl-D ends")
    source = _argument_batches(messages) if messages else line_batches(sys.stdin.fileno())

    async def sending() -> int:
        from moldau.client.queue.outgoing import Outgoing

        async with connected(addresses, timeout) as client:
            sender = ProgressSender(client, topic, quiet=quiet)
            try:
                async for lines in source:
                    batch = [
                        Outgoing(
                            value=line.value,
                            key=line.key,
                            headers=headers,
                            delay=delay,
                            deliver_at=deliver_at,
                        )
                        for line in split_lines(lines, key_separator, key=key, tombstones=False)
                    ]
                    await sender.send(batch)
            finally:
                sender.close()
            return sender.sent

    sent = asyncio.run(sending())
    if not quiet:
        say(f"sent {counted(sent, 'message')} to {topic}")


async def line_batches(fileno: int) -> AsyncIterator[list[bytes]]:
    """Lines of a file in batches of what is available, so that typed lines are sent at once.

    Raises CommandError for a line that is too long.
    """
    unfinished = bytearray()
    is_ended = False
    while not is_ended:
        data = await asyncio.to_thread(_read_available, fileno)
        if data is None:
            continue
        is_ended = not data
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(unfinished) + lines[0]
            unfinished.clear()
        unfinished += rest
        if len(unfinished) > LINE_BYTES_MAX:
            raise CommandError(f"a line is longer than {format_bytes(LINE_BYTES_MAX)}")
        if is_ended and unfinished:
            lines = [bytes(unfinished)]
        for batch in _batches(lines):
            yield batch


def _read_available(fileno: int) -> bytes | None:
    # In slices: a thread that blocks would delay the end of the process.
    readable, _, _ = select.select([fileno], [], [], _READ_SECONDS)
    return os.read(fileno, _READ_BYTES) if readable else None


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(lines), BATCH_MESSAGES_MAX):
        yield lines[start : start + BATCH_MESSAGES_MAX]


async def _argument_batches(messages: Sequence[str]) -> AsyncIterator[list[bytes]]:
    for batch in _batches([message.encode(errors="surrogateescape") for message in messages]):
        yield batch


def _cause(error: "SendFailedError") -> "ClientError":
    """The common cause if all messages failed for the same reason, for its exit code."""
    reasons = {str(each) for each in error.failures.values()}
    return next(iter(error.failures.values())) if len(reasons) == 1 else error


class ProgressSender:
    """Sends batches one after the other, and shows the progress."""

    def __init__(self, client: "AsyncQueueClient", topic: str, *, quiet: bool) -> None:
        self._client = client
        self._topic = topic
        self._shown = not quiet and sys.stderr.isatty()
        self._started = self._next_shown = time.monotonic()
        self.sent = 0

    async def send(self, batch: "Sequence[Outgoing]") -> None:
        """Raises ClientError; its hint says how many messages were sent."""
        from moldau.client.errors import ClientError, SendFailedError

        try:
            await self._client.send_many(self._topic, batch)
        except SendFailedError as error:
            self.sent += len(batch) - len(error.failures)
            raise self._with_hint(_cause(error)) from error
        except ClientError as error:
            raise self._with_hint(error) from error
        self.sent += len(batch)
        self._show()

    def _with_hint(self, error: "ClientError") -> "ClientError":
        from moldau.client.errors import NotFoundError

        hints = [f"{counted(self.sent, 'message')} acknowledged"] if self.sent else []
        if isinstance(error, NotFoundError):
            hints.append(f"create it: moldau topic create {self._topic}")
        elif error.hint:
            hints.append(error.hint)
        error.hint = " · ".join(hints)
        return error

    def _show(self) -> None:
        now = time.monotonic()
        # Not for a run that ends within a moment.
        if self._shown and now - self._next_shown > _PROGRESS_SECONDS:
            rate = self.sent / (now - self._started)
            sys.stderr.write(f"\r\033[K{self.sent:,} messages, {rate:,.0f}/s")
            sys.stderr.flush()
            self._next_shown = now

    def close(self) -> None:
        """Erase the progress line."""
        if self._shown and self._next_shown > self._started:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
