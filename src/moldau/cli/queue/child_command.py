"""Runs the command of `moldau queue work` for a message.

The value is its standard input, the rest is in its environment. It runs in its own process group,
so that Ctrl-C reaches only the worker, which lets it finish, and a timeout ends its children, too.
Its standard error is passed through; the last line is the reason of a failure.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from moldau.cli.messages.formats import json_value
from moldau.cli.output import printable

if TYPE_CHECKING:
    from moldau.client.queue.sync_worker import QueueMessage

REASON_CHARACTERS_MAX: Final = 500
VARIABLE_BYTES_MAX: Final = 64 * 1024
"""Of one variable; Linux rejects a process with more than twice that."""
TERMINATE_SECONDS: Final = 5.0
"""Between SIGTERM and SIGKILL."""

VARIABLES: Final = tuple(
    f"MOLDAU_{name}"
    for name in (
        "TOPIC",
        "PARTITION",
        "OFFSET",
        "TIMESTAMP",
        "KEY",
        "KEY_BASE64",
        "HEADERS",
        "ATTEMPT",
        "GROUP",
    )
)
"""All variables that `variables` may set."""

_READ_BYTES: Final = 64 * 1024
_READS_MAX: Final = 8


def variables(message: "QueueMessage", group: str) -> dict[str, str | bytes]:
    """The variables of a message, in addition to our environment."""
    found: dict[str, str | bytes] = {
        "MOLDAU_TOPIC": message.topic,
        "MOLDAU_PARTITION": str(message.partition),
        "MOLDAU_OFFSET": str(message.offset),
        "MOLDAU_TIMESTAMP": str(message.timestamp),
        "MOLDAU_ATTEMPT": str(message.attempt),
        "MOLDAU_GROUP": group,
    }
    key = message.key
    if key is not None and len(key) <= VARIABLE_BYTES_MAX:
        # A variable cannot contain a zero byte.
        if b"\0" in key:
            found["MOLDAU_KEY_BASE64"] = base64.b64encode(key).decode()
        else:
            found["MOLDAU_KEY"] = key
    headers = json.dumps([[name, json_value(value)] for name, value in message.headers])
    if len(headers) <= VARIABLE_BYTES_MAX:
        found["MOLDAU_HEADERS"] = headers
    return found


class LastLine:
    """Keeps the last line of a stream that is not empty."""

    def __init__(self) -> None:
        self._whole = b""
        self._open = b""

    def feed(self, data: bytes) -> None:
        *lines, self._open = (self._open + data).split(b"\n")
        for line in reversed(lines):
            if line.strip():
                self._whole = line
                break
        # Keep the beginning of a line that does not end.
        self._open = self._open[: 4 * REASON_CHARACTERS_MAX]

    @property
    def is_open(self) -> bool:
        """The last line has no newline yet."""
        return bool(self._open)

    @property
    def text(self) -> str:
        last = self._open if self._open.strip() else self._whole
        return printable(last.decode(errors="replace")).strip()[:REASON_CHARACTERS_MAX]


async def run_command(
    command: Sequence[str],
    message: "QueueMessage",
    group: str,
    *,
    environment: Mapping[str, str],
    seconds_max: float | None = None,
) -> str:
    """Run a command to its end; returns why it failed, empty if it succeeded.

    Raises OSError if it cannot start; ends it when cancelled.
    """
    last, reader = LastLine(), -1
    with tempfile.TemporaryFile(prefix="moldau-") as stdin:
        # A file, not a pipe: the command need not read all of it.
        stdin.write(message.value or b"")
        stdin.seek(0)
        reader, writer = os.pipe()
        try:
            os.set_blocking(reader, False)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=stdin,
                stderr=writer,
                env={**environment, **variables(message, group)},
                process_group=0,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
    loop = asyncio.get_running_loop()
    loop.add_reader(reader, _pass_on, loop, reader, last)
    try:
        timed_out = await _await_end(process, seconds_max)
    finally:
        # Its children may keep the pipe open, so do not wait for its end.
        _pass_on(loop, reader, last)
        if last.is_open:
            _write(b"\n")
        loop.remove_reader(reader)
        os.close(reader)
    if timed_out:
        return f"timed out after {seconds_max:g} s"
    if process.returncode == 0:
        return ""
    return last.text or describe(process.returncode)


def _pass_on(loop: asyncio.AbstractEventLoop, reader: int, last: LastLine) -> None:
    """Copy the available output of the command's standard error."""
    # Bounded: a command that never stops writing must not block the event loop.
    with contextlib.suppress(BlockingIOError):
        for _ in range(_READS_MAX):
            data = os.read(reader, _READ_BYTES)
            if not data:
                loop.remove_reader(reader)
                return
            last.feed(data)
            _write(data)


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


async def _await_end(process: asyncio.subprocess.Process, seconds_max: float | None) -> bool:
    """Wait for its end; True if it was ended by the timeout."""
    try:
        async with asyncio.timeout(seconds_max):
            await process.wait()
    except TimeoutError:
        await _end(process)
        return True
    except asyncio.CancelledError:
        await _end(process)
        raise
    return False


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL, to the command and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
            return


def describe(code: int | None) -> str:
    """An exit code as text."""
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
