"""Owns when a running pipeline says how it is: to who watches here, and to the brokers.

Watchers are told by whoever has news. The brokers are told by a thread of its own, at most once a
second and at least every few seconds: a broker that is away delays nothing, and hears the rest
when it is back.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from moldau.model.errors import MoldauError
from moldau.spark.pipelines.spec import Progress
from moldau.spark.pipelines.state import Board, Record

log = logging.getLogger(__name__)

WATCHER_SECONDS_MIN: Final = 0.25
PUBLISH_SECONDS_MIN: Final = 1.0
HEARTBEAT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 0.2
FAREWELL_SECONDS_MAX: Final = 10.0
_PUBLISH_SECONDS_MAX: Final = 5.0

Watcher = Callable[[Record], None]


class Reporter:
    """Says how one pipeline is, from `start` until `close`."""

    def __init__(self, record: Record, *, bootstrap: str, watcher: Watcher | None = None) -> None:
        self._bootstrap = bootstrap
        self._watcher = watcher
        self._lock = threading.Lock()
        self._record = record
        self._told_at = 0.0
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="pipeline-state", daemon=True)

    @property
    def record(self) -> Record:
        return self._record

    def start(self) -> None:
        self._tell()
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        """Cheap: told when the last time is long enough ago."""
        with self._lock:
            self._record = self._record.changed(progress=progress)
        if time.monotonic() - self._told_at >= WATCHER_SECONDS_MIN:
            self._tell()
        self._news.set()

    def change(self, **changes: Any) -> None:
        """Told at once."""
        with self._lock:
            self._record = self._record.changed(**changes)
        self._tell()

    def close(self, **changes: Any) -> None:
        """Say the last word; the broker is waited for, but not for long."""
        self.change(**changes)
        self._closing.set()
        self._news.set()
        self._thread.join(FAREWELL_SECONDS_MAX + _PUBLISH_SECONDS_MAX)

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        if self._watcher is not None:
            self._watcher(self._record)
        self._news.set()

    def _publish(self) -> None:
        is_heard = True
        with Board(self._bootstrap, seconds_max=_PUBLISH_SECONDS_MAX) as board:
            while not self._closing.is_set():
                self._news.wait(HEARTBEAT_SECONDS)
                self._news.clear()
                with self._lock:
                    record = self._record.changed()
                is_heard = self._publish_once(board, record, was_heard=is_heard)
                self._closing.wait(PUBLISH_SECONDS_MIN)
            # Brokers that were away all the time are hardly back just now.
            seconds_max = FAREWELL_SECONDS_MAX if is_heard else FAREWELL_SECONDS_MAX / 5
            deadline = time.monotonic() + seconds_max
            while not self._publish_once(board, self._record, was_heard=False):
                if time.monotonic() >= deadline:
                    return
                time.sleep(RETRY_SECONDS)

    def _publish_once(self, board: Board, record: Record, *, was_heard: bool) -> bool:
        try:
            board.publish(record)
        except (MoldauError, OSError) as error:
            if was_heard:
                log.warning("the brokers do not hear how this pipeline is: %s", error)
            return False
        return True
