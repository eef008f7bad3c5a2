"""A file system whose flushes are slow on purpose; brokers in production do not use it."""

import threading
import time
from typing import Final

from moldau.log.os_filesystem import OsFile, OsFiles

_LOOP_SECONDS_MAX: Final = 0.005
"""In the main thread, which runs the event loop: the flusher goes to its threads as soon as flushes
prove to be slower than this."""


class DiskDelay:
    """Shared by all files of a broker."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self) -> None:
        """Sleeps in the thread that flushes."""
        seconds = self.seconds
        if seconds <= 0:
            return
        if threading.current_thread() is threading.main_thread():
            seconds = min(seconds, _LOOP_SECONDS_MAX)
        time.sleep(seconds)


class SlowFile(OsFile):
    __slots__ = ("_delay",)

    def __init__(self, descriptor: int, delay: DiskDelay) -> None:
        super().__init__(descriptor)
        self._delay = delay

    def flush(self) -> None:
        self._delay.wait()
        super().flush()


class SlowFiles(OsFiles):
    def __init__(self, root: str, delay: DiskDelay) -> None:
        super().__init__(root)
        self._delay = delay

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SlowFile:
        return SlowFile(self._opened(path, create=create, writable=writable), self._delay)
