"""Owns when a running pipeline says how it is: to its folder, to who watches, and to the broker.

The folder and the watcher are told by whoever has news, now and then. The broker is told by a
thread of its own, at most once a second and at least every few seconds: a broker that is away
delays nothing, and hears the rest when it is back.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from moldau.client.errors import ClientError
from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.record import Record
from moldau.spark.pipelines.spec import Progress
from moldau.spark.pipelines.state import Board

log = logging.getLogger(__name__)

LOCAL_SECONDS_MIN: Final = 0.25
PUBLISH_SECONDS_MIN: Final = 1.0
HEARTBEAT_SECONDS: Final = 5.0
FAREWELL_SECONDS_MAX: Final = 10.0
_PUBLISH_SECONDS_MAX: Final = 5.0

Watcher = Callable[[Record], None]


class Reporter:
    """Says how one pipeline is, from `start` until `close`."""

    def __init__(
        self, record: Record, *, home: Home, bootstrap: str, watcher: Watcher | None = None
    ) -> None:
        self._home = home
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
        self._tell(self._record)
        self._thread.start()

    def progress(self, progress: Progress) -> None:
        """Cheap: told when the last time is long enough ago."""
        with self._lock:
            self._record = self._record.changed(progress=progress)
            is_due = time.monotonic() - self._told_at >= LOCAL_SECONDS_MIN
        if is_due:
            self._tell(self._record)
        self._news.set()

    def change(self, **changes: Any) -> None:
        """Told at once."""
        with self._lock:
            self._record = self._record.changed(**changes)
        self._tell(self._record)
        self._news.set()

    def close(self, **changes: Any) -> None:
        """Say the last word; the broker is waited for, but not for long."""
        self.change(**changes)
        self._closing.set()
        self._news.set()
        self._thread.join(FAREWELL_SECONDS_MAX + _PUBLISH_SECONDS_MAX)

    def _tell(self, record: Record) -> None:
        self._told_at = time.monotonic()
        try:
            self._home.write_state(record)
        except OSError as error:
            # A full disk is no reason to stop: what matters is in the checkpoint.
            log.warning("the state cannot be written to %s: %s", self._home.path, error)
        if self._watcher is not None:
            self._watcher(record)

    def _publish(self) -> None:
        deadline = None
        was_silent = False
        with Board(self._bootstrap, seconds_max=_PUBLISH_SECONDS_MAX) as board:
            while True:
                self._news.wait(HEARTBEAT_SECONDS)
                self._news.clear()
                is_last = self._closing.is_set()
                if is_last and deadline is None:
                    deadline = time.monotonic() + FAREWELL_SECONDS_MAX
                with self._lock:
                    record = self._record if is_last else self._record.changed()
                try:
                    board.publish(record)
                except (ClientError, OSError) as error:
                    if not was_silent:
                        log.warning("the brokers do not hear how this pipeline is: %s", error)
                    was_silent = True
                    if deadline is not None and time.monotonic() >= deadline:
                        return
                    self._news.set()
                else:
                    was_silent = False
                    if is_last:
                        return
                if not is_last:
                    self._closing.wait(PUBLISH_SECONDS_MIN)
