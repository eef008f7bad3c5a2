"""The broker's side of the log cleaner process, which is started on demand and ended when idle.

A crash of that process does not harm the broker: it raises WorkerLostError, and the next request
starts a new process.
"""

import asyncio
import contextlib
import logging
import os
import sys
from typing import Final

from moldau.log.compaction.worker import (
    HEAD_BYTES,
    WorkerCommand,
    WorkerReply,
    decode_reply,
    frame,
    frame_bytes,
)
from moldau.model.errors import MoldauError

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 60.0
_MODULE: Final = "moldau.log.compaction.worker"


class WorkerLostError(MoldauError):
    """The process ended, cannot be started, or sent an invalid reply."""


class CleanerProcess:
    """At most one process; one request at a time."""

    def __init__(self, directory: str, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._directory = directory
        self._idle_seconds = idle_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._killed: list[asyncio.subprocess.Process] = []
        """To be waited for, so that no zombie remains."""
        self._idle: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()

    async def run(self, command: WorkerCommand) -> WorkerReply:
        """Sends a command. Raises WorkerLostError. If this is cancelled, the process is killed."""
        async with self._turn:
            self._cancel_idle_timer()
            has_reply = False
            try:
                answer = await self._exchange(await self._started(), frame(command))
                has_reply = True
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                raise WorkerLostError(f"lost the log cleaner process: {error}") from error
            finally:
                if not has_reply:
                    self._kill()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_seconds, self._kill)
            return answer

    async def _started(self) -> asyncio.subprocess.Process:
        await self._reap()
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                os.path.abspath(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            log.debug("started the log cleaner process, pid %d", self._process.pid)
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> WorkerReply:
        if process.stdin is None or process.stdout is None:
            raise OSError("the pipes of the log cleaner process are closed")
        process.stdin.write(request)
        await process.stdin.drain()
        head = await process.stdout.readexactly(HEAD_BYTES)
        return decode_reply(await process.stdout.readexactly(frame_bytes(head)))

    def _cancel_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _kill(self) -> None:
        """Its current work is discarded."""
        self._cancel_idle_timer()
        process, self._process = self._process, None
        if process is None:
            return
        self._killed.append(process)
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _reap(self) -> None:
        while self._killed:
            await self._killed.pop().wait()

    async def close(self) -> None:
        """Kills the process. Cancel pending `run` calls first."""
        self._kill()
        await self._reap()
