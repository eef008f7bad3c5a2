"""Owns the broker's end of the process that cleans logs: started on demand, ended when idle.

Whatever happens to that process is no harm to the broker: WorkerLostError, and the next request
starts another one.
"""

import asyncio
import contextlib
import logging
import os
import sys
from typing import Final

from moldau.log.clean_worker import HEAD_BYTES, Asked, WorkerReply, decode_reply, frame, frame_bytes
from moldau.model.errors import MoldauError

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 60.0
_MODULE: Final = "moldau.log.clean_worker"


class WorkerLostError(MoldauError):
    """The process ended, or cannot be started, or says what makes no sense."""


class CleanerProcess:
    """At most one process; one request at a time."""

    def __init__(self, directory: str, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._directory = directory
        self._idle_seconds = idle_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._killed: list[asyncio.subprocess.Process] = []
        """To be waited for, so that none is left behind as a zombie."""
        self._idle: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def ask(self, message: Asked) -> WorkerReply:
        """Raises WorkerLostError. If it is cancelled, the process ends."""
        async with self._turn:
            self._stop_idling()
            is_answered = False
            try:
                answer = await self._exchange(await self._started(), frame(message))
                is_answered = True
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                raise WorkerLostError(f"the cleaner's process is lost: {error}") from error
            finally:
                if not is_answered:
                    self._end()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_seconds, self._end)
            return answer

    async def _started(self) -> asyncio.subprocess.Process:
        await self._bury()
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                os.path.abspath(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            log.debug("the cleaner's process is %d", self._process.pid)
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> WorkerReply:
        if process.stdin is None or process.stdout is None:
            raise OSError("its pipes are closed")
        process.stdin.write(request)
        await process.stdin.drain()
        head = await process.stdout.readexactly(HEAD_BYTES)
        return decode_reply(await process.stdout.readexactly(frame_bytes(head)))

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end(self) -> None:
        """What it was doing counts for nothing."""
        self._stop_idling()
        process, self._process = self._process, None
        if process is None:
            return
        self._killed.append(process)
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _bury(self) -> None:
        while self._killed:
            await self._killed.pop().wait()

    async def close(self) -> None:
        """End the process, whatever it does. Cancel who waits for an answer before."""
        self._end()
        await self._bury()
