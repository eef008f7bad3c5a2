"""The signals of a supervisor that otherwise sleeps: each one wakes it up."""

import contextlib
import signal
import socket
from types import FrameType
from typing import Final, Self

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Within the context, the signals that stop a program only set `stop`. A process that ends, as
    they do, makes `fileno` readable."""

    def __init__(self) -> None:
        self.stop = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                continue

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._stop) for number in _STOPS}
        # A signal that is ignored, as this one is, wakes up nobody.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._ended)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    def _ended(self, number: int, frame: FrameType | None) -> None:
        """What ended is found by asking all."""
