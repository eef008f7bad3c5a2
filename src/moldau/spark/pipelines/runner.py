"""Responsible for a pipeline while it runs: its session, what it tells, and how it is stopped.

`execute` runs one from its start to its end, whatever the end is: the brokers have its last word.
They are told by a thread of its own, once a second: a broker that is away delays nothing.
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
from moldau.spark.pipelines import spec
from moldau.spark.pipelines.home import BusyError, Home, begun_at
from moldau.spark.pipelines.settings_file import check_conf, without_secrets
from moldau.spark.pipelines.spark_errors import from_text, readable
from moldau.spark.pipelines.spec import Outcome, PipelineSettings, PipelineState, Progress
from moldau.spark.pipelines.status import QueryProgress, Record, StatusTopic, now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
PUBLISH_SECONDS: Final = 1.0
FAREWELL_SECONDS_MAX: Final = 10.0
"""Brokers that have not answered for so long do not get the last word either."""

Watcher = Callable[[Record], None]


class PipelineRun:
    """The `Context` of a pipeline."""

    def __init__(self, settings: PipelineSettings, watcher: Watcher) -> None:
        self.stopping = False
        """Set by the first SIGINT or SIGTERM; a second one interrupts whatever is going on."""
        self._settings = settings
        self._watcher = watcher
        self._session: SparkSession | None = None
        self._is_session_ours = False
        self._signals: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._dead_letters = 0
        self._record = Record(
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

    # -- what pipelines use

    @property
    def spark(self) -> "SparkSession":
        if self._session is None:
            from pyspark.sql import SparkSession

            from moldau.spark.sessions import session

            told = self._settings
            self._is_session_ours = SparkSession.getActiveSession() is None
            self._session = session(told.master, f"moldau pipeline {told.name}", told.conf)
            # Spark's context took the signals for itself.
            self._take_signals()
        return self._session

    def report(self, progress: Progress) -> None:
        """Who has something to report is running."""
        with self._lock:
            counted = replace(progress, dead_letters=self._dead_letters)
            self._tell(state=PipelineState.RUNNING, progress=counted)

    def dead_letters(self, count: int) -> None:
        with self._lock:
            self._dead_letters += count
            self.report(self._record.progress)

    def watch(self, query: "StreamingQuery") -> None:
        counted = QueryProgress()
        was_stopping = False
        while True:
            is_active, error = query.isActive, query.exception()
            told, status = _progress_of(query, counted), query.status
            is_new = counted.take(told)
            # Spark is silent until a batch is done, but says when it has found its topics.
            has_begun = status["isDataAvailable"] or status["message"].startswith("Waiting")
            if told or (error is None and (has_begun or not is_active)):
                progress = counted.progress
                if progress.lag is not None and not self._settings.continuous:
                    progress = replace(progress, rows_total=progress.rows + progress.lag)
                note = "stopping after this batch" if self.stopping else ""
                self.report(replace(progress, note=note))
            if error is not None:
                raise from_text(str(error)) from error
            if not is_active:
                return
            # A batch that was done before somebody wanted it to stop is not the one at hand.
            is_between = not status["isTriggerActive"] or (was_stopping and is_new)
            if self.stopping and is_between:
                query.stop()
            was_stopping = self.stopping
            time.sleep(POLL_SECONDS)

    # -- from its start to its end

    def start(self) -> None:
        self._thread.start()
        self._take_signals()
        self._tell()

    def end(self, **changes: Any) -> None:
        """Say the last word, for which brokers are waited for; give back session and signals."""
        self._tell(**changes)
        self._closing.set()
        self._thread.join(2 * FAREWELL_SECONDS_MAX)
        ours, self._session = self._session if self._is_session_ours else None, None
        try:
            if ours is not None:
                ours.stop()
        finally:
            for number, before in self._signals.items():
                signal.signal(number, before)

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self._on_signal)
                self._signals.setdefault(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def _tell(self, **changes: Any) -> None:
        with self._lock:
            self._record = self._record.changed(**changes)
            self._watcher(self._record)

    def _publish(self) -> None:
        last_contact_at, is_heard = time.monotonic(), True
        with StatusTopic(self._settings.bootstrap) as board:
            while True:
                is_last = self._closing.is_set()
                try:
                    board.publish(self._record.changed())
                    last_contact_at, is_heard = time.monotonic(), True
                except (MoldauError, OSError) as error:
                    if is_heard:
                        log.warning("the brokers do not hear how this pipeline is: %s", error)
                    is_heard = False
                if is_last and (
                    is_heard or time.monotonic() - last_contact_at > FAREWELL_SECONDS_MAX
                ):
                    return
                (time.sleep if is_last else self._closing.wait)(PUBLISH_SECONDS)


def _progress_of(query: "StreamingQuery", counted: QueryProgress) -> list[dict[str, Any]]:
    """What Spark tells of the batches since it was asked last, the oldest first."""
    last = query.lastProgress
    if last is None:
        return []
    known = counted.progress.batch
    if known is not None and last.batchId <= known + 1:
        return [json.loads(last.json)]
    # There may have been several; each of them costs a call to Java, so only then.
    return [json.loads(each.json) for each in query.recentProgress]


def execute(
    settings: PipelineSettings, *, watcher: Watcher = lambda record: None, force: bool = False
) -> Outcome:
    """Run a pipeline in this process. Raises what it fails with; BusyError if it runs already."""
    kind = spec.load(settings.kind)
    check_conf(settings.conf)
    home = Home(settings.home)
    with home.held():
        if not force:
            _check_elsewhere(settings)
        running = PipelineRun(settings, watcher)
        try:
            running.start()
            outcome: Outcome = kind.run(begun_at(settings, home), running)
            state = PipelineState.STOPPED if running.stopping else PipelineState.FINISHED
            running.end(state=state, outcome=outcome)
            return outcome
        except BaseException as error:
            # However it ends, it is said; errors of Spark's become ours.
            log.debug("the pipeline failed", exc_info=True)
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


def _check_elsewhere(settings: PipelineSettings) -> None:
    """Raises BusyError if a pipeline of that name runs somewhere else, as far as brokers know."""
    try:
        with StatusTopic(settings.bootstrap) as board:
            found = board.read().get(settings.name)
    except ClientError as error:
        # Brokers that are away are the pipeline's own problem, and it says so better.
        log.warning("nobody knows whether pipeline %s runs elsewhere: %s", settings.name, error)
        return
    here = socket.gethostname(), os.getpid()
    if found is not None and found.is_alive() and (found.host, found.pid) != here:
        raise BusyError(
            f"pipeline {settings.name} is running already, on {found.host} as process {found.pid}",
            hint="stop it there · another one: --name NAME · if it is surely gone: --force",
        )
