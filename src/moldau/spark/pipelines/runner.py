"""Runs a pipeline: its Spark session, its status, and its stop by signals.

`execute` runs one from start to end. A separate thread publishes its status once a second, so that
an unavailable broker does not delay it; the final status is always published.
"""

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import ClientError
from moldau.client.processes import started_at
from moldau.model.errors import MoldauError
from moldau.spark.pipelines.home import BusyError, Home
from moldau.spark.pipelines.kinds import load
from moldau.spark.pipelines.secrets import without_secrets
from moldau.spark.pipelines.settings_file import check_conf
from moldau.spark.pipelines.spark_errors import from_text, readable
from moldau.spark.pipelines.spec import Outcome, PipelineSettings, PipelineState, Progress
from moldau.spark.pipelines.status import PipelineStatus, QueryProgress, StatusTopic, now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
PUBLISH_SECONDS: Final = 1.0
FINAL_STATUS_SECONDS_MAX: Final = 10.0
"""The final status is not retried if brokers have not responded for this long."""

Watcher = Callable[[PipelineStatus], None]


class PipelineRun:
    """The `PipelineContext` of a running pipeline."""

    def __init__(self, settings: PipelineSettings, watcher: Watcher) -> None:
        self.stopping = False
        """Set by the first SIGINT or SIGTERM; a second one interrupts the batch."""
        self._settings = settings
        self._watcher = watcher
        self._session: SparkSession | None = None
        self._is_session_ours = False
        self._signals: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._dead_letters = 0
        self._status = PipelineStatus(
            name=settings.name,
            kind=settings.kind,
            state=PipelineState.STARTING,
            settings=without_secrets(settings),
            host=socket.gethostname(),
            pid=os.getpid(),
            process=started_at(os.getpid()) or "",
            home=settings.home,
            started_at=now_ms(),
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="pipeline-state", daemon=True)

    # -- used by pipelines

    @property
    def spark(self) -> "SparkSession":
        if self._session is None:
            from pyspark.sql import SparkSession

            from moldau.spark.sessions import session

            settings = self._settings
            self._is_session_ours = SparkSession.getActiveSession() is None
            name = f"moldau pipeline {settings.name}"
            self._session = session(settings.master, name, settings.conf)
            # Spark's context has replaced the signal handlers.
            self._handle_signals()
        return self._session

    def report(self, progress: Progress) -> None:
        """Also sets the state to running."""
        with self._lock:
            counted = replace(progress, dead_letters=self._dead_letters)
            self._update(state=PipelineState.RUNNING, progress=counted)

    def dead_letters(self, count: int) -> None:
        with self._lock:
            self._dead_letters += count
            self.report(self._status.progress)

    def watch(self, query: "StreamingQuery") -> None:
        counted = QueryProgress()
        was_stopping = False
        while True:
            is_active, error = query.isActive, query.exception()
            batches, status = _progress_of(query, counted), query.status
            is_new = counted.add(batches)
            # Before the first batch is done, only the query's status shows that it has started.
            has_started = status["isDataAvailable"] or status["message"].startswith("Waiting")
            if batches or (error is None and (has_started or not is_active)):
                progress = counted.progress
                if progress.lag is not None and not self._settings.continuous:
                    progress = replace(progress, rows_total=progress.rows + progress.lag)
                note = "stopping after this batch" if self.stopping else ""
                self.report(replace(progress, note=note))
            if error is not None:
                raise from_text(str(error)) from error
            if not is_active:
                return
            # A batch that was done before the stop request is not the current one.
            is_between = not status["isTriggerActive"] or (was_stopping and is_new)
            if self.stopping and is_between:
                query.stop()
            was_stopping = self.stopping
            time.sleep(POLL_SECONDS)

    # -- start and end

    def start(self) -> None:
        self._thread.start()
        self._handle_signals()
        self._update()

    def end(self, **changes: Any) -> None:
        """Publishes the final status, stops our session and restores signal handlers."""
        self._update(**changes)
        self._closing.set()
        self._thread.join(2 * FINAL_STATUS_SECONDS_MAX)
        ours, self._session = self._session if self._is_session_ours else None, None
        try:
            if ours is not None:
                ours.stop()
        finally:
            for number, before in self._signals.items():
                signal.signal(number, before)

    def _handle_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self._on_signal)
                self._signals.setdefault(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def _update(self, **changes: Any) -> None:
        with self._lock:
            self._status = self._status.changed(**changes)
            self._watcher(self._status)

    def _publish(self) -> None:
        published_at, is_published = time.monotonic(), True
        with StatusTopic(self._settings.bootstrap, security=self._settings.security) as topic:
            while True:
                is_last = self._closing.is_set()
                try:
                    topic.publish(self._status.changed())
                    published_at, is_published = time.monotonic(), True
                except (MoldauError, OSError) as error:
                    if is_published:
                        log.warning("cannot publish the pipeline status, will retry: %s", error)
                    is_published = False
                waited = time.monotonic() - published_at
                if is_last and (is_published or waited > FINAL_STATUS_SECONDS_MAX):
                    return
                (time.sleep if is_last else self._closing.wait)(PUBLISH_SECONDS)


def _progress_of(query: "StreamingQuery", counted: QueryProgress) -> list[dict[str, Any]]:
    """Spark's progress of the batches since the last call, oldest first."""
    last = query.lastProgress
    if last is None:
        return []
    known = counted.progress.batch
    if known is not None and last.batchId <= known + 1:
        return [json.loads(last.json)]
    # Only if there may be several: each costs a call to Java.
    return [json.loads(each.json) for each in query.recentProgress]


def execute(
    settings: PipelineSettings, *, watcher: Watcher = lambda record: None, force: bool = False
) -> Outcome:
    """Runs a pipeline in this process. Raises its error; BusyError if it is already running."""
    kind = load(settings.kind)
    check_conf(settings.conf)
    with Home(settings.home).locked():
        if not force:
            _check_other_machines(settings)
        running = PipelineRun(settings, watcher)
        try:
            running.start()
            outcome: Outcome = kind.run(settings, running)
            state = PipelineState.STOPPED if running.stopping else PipelineState.FINISHED
            running.end(state=state, outcome=outcome)
            return outcome
        except BaseException as error:
            # Any end is published; errors of Spark become ours.
            log.debug("pipeline %s failed", settings.name, exc_info=True)
            state, text, hint = (
                PipelineState.FAILED,
                f"{type(error).__name__}: {error}".splitlines()[0],
                "",
            )
            ours = error if isinstance(error, MoldauError) else readable(error)
            if ours is not None:
                text, hint = str(ours), ours.hint
            elif isinstance(error, KeyboardInterrupt):
                state, text = PipelineState.STOPPED, "interrupted in the middle of a batch"
            running.end(state=state, error=text, hint=hint)
            if ours is None or ours is error:
                raise
            raise ours from error


def _check_other_machines(settings: PipelineSettings) -> None:
    """Raises BusyError if the status topic says that this pipeline runs in another process."""
    try:
        with StatusTopic(settings.bootstrap, security=settings.security) as topic:
            found = topic.read().get(settings.name)
    except ClientError as error:
        # If brokers are unavailable, the pipeline itself reports that better.
        log.warning("cannot check for other runs of pipeline %s: %s", settings.name, error)
        return
    here = socket.gethostname(), os.getpid()
    if found is not None and found.is_alive() and (found.host, found.pid) != here:
        raise BusyError(
            f"pipeline {settings.name} is already running, on {found.host} as process {found.pid}",
            hint="stop it there · run another: --name NAME · if that machine is down: --force",
        )
