"""Owns a pipeline while it runs: its session, what it reports, and how it is told to stop.

`execute` runs one from its start to its end, whatever the end is: the brokers have its last word.
"""

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import ClientError, NotFoundError
from moldau.client.kafka.client import KafkaClient
from moldau.client.processes import started_at
from moldau.model.errors import MoldauError
from moldau.spark.pipelines import registry
from moldau.spark.pipelines.declared import check_conf, without_secrets
from moldau.spark.pipelines.failures import from_text, readable
from moldau.spark.pipelines.home import BusyError, Home
from moldau.spark.pipelines.reporting import Reporter, Watcher
from moldau.spark.pipelines.spec import Outcome, Progress, Settings, State
from moldau.spark.pipelines.state import Board, Record, now_ms
from moldau.spark.pipelines.watching import QueryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
BATCH_SECONDS_MAX: Final = 300.0
"""So long the batch at hand may take to its end once somebody wants the pipeline to stop."""
_IDLE_SECONDS: Final = 10.0
_LOOK_SECONDS_MAX: Final = 3.0
_STOPPING: Final = "stopping after this batch"
_OWN_CONF: Final = {"spark.sql.streaming.numRecentProgressUpdates": "20"}
"""More than batches can be between two looks; each that is kept is read anew."""
_EARLIEST: Final = -2
_START_OPTIONS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""In small letters: their case means nothing."""


class StopFlag:
    """Set by the first SIGINT or SIGTERM; a second one interrupts whatever is going on."""

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[int, Any] = {}

    def ask(self) -> None:
        self.is_asked = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.ask()

    def install(self) -> None:
        """Also after others took the signals: Spark's context does when it is made."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self.handle)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()


class Running:
    """The `Context` of a pipeline."""

    def __init__(self, settings: Settings, reporter: Reporter, stop: StopFlag) -> None:
        self._settings = settings
        self._reporter = reporter
        self._stop = stop
        self._session: SparkSession | None = None
        self._is_session_ours = False
        self._lock = threading.Lock()
        self._dead_letters = 0

    # -- what pipelines use

    @property
    def spark(self) -> "SparkSession":
        if self._session is None:
            from moldau.spark.sessions import check_installed, session

            check_installed()
            from pyspark.sql import SparkSession

            self._is_session_ours = SparkSession.getActiveSession() is None
            told = self._settings
            conf = {**_OWN_CONF, **told.conf} if self._is_session_ours else told.conf
            self._session = session(told.master, f"moldau pipeline {told.name}", conf)
            # Spark's context took the signals for itself.
            self._stop.install()
        return self._session

    @property
    def stopping(self) -> bool:
        return self._stop.is_asked

    def report(self, progress: Progress) -> None:
        with self._lock:
            most = max(progress.dead_letters, self._dead_letters)
            self._dead_letters = most
        self._tell(replace(progress, dead_letters=most))

    def dead_letters(self, count: int) -> None:
        with self._lock:
            self._dead_letters += count
            told = self._dead_letters
        self._reporter.progress(replace(self._reporter.record.progress, dead_letters=told))

    def watch(self, query: "StreamingQuery") -> None:
        counted = QueryProgress()
        changed_at = time.monotonic()
        stopping_since: float | None = None
        batch_then: int | None = None
        while query.isActive:
            told = _progress_of(query, counted)
            if counted.take(told):
                changed_at = time.monotonic()
            if told or _has_begun(query.status):
                self._report(counted, is_idle=time.monotonic() - changed_at > _IDLE_SECONDS)
            if self.stopping:
                if stopping_since is None:
                    stopping_since, batch_then = time.monotonic(), counted.batch
                is_between = not query.status["isTriggerActive"] or counted.batch != batch_then
                if is_between or time.monotonic() - stopping_since > BATCH_SECONDS_MAX:
                    query.stop()
                    break
            time.sleep(POLL_SECONDS)
        told = _progress_of(query, counted)
        counted.take(told)
        error = query.exception()
        if told or error is None:
            self._report(counted, is_idle=False)
        if error is not None:
            raise from_text(str(error)) from error

    # -- what is behind it

    def _report(self, counted: QueryProgress, *, is_idle: bool) -> None:
        with self._lock:
            dead = self._dead_letters
        progress = counted.progress(
            dead_letters=dead, is_idle=is_idle, is_continuous=self._settings.continuous
        )
        self._tell(replace(progress, note=_STOPPING) if self.stopping else progress)

    def _tell(self, progress: Progress) -> None:
        """Who has something to report is running."""
        if self._reporter.record.state is State.STARTING:
            self._reporter.change(state=State.RUNNING, progress=progress)
        else:
            self._reporter.progress(progress)

    def close(self) -> None:
        """End the session, if it was made for this pipeline."""
        if self._session is not None and self._is_session_ours:
            self._session.stop()
        self._session = None


def _progress_of(query: "StreamingQuery", counted: QueryProgress) -> list[dict[str, Any]]:
    """What Spark tells of the batches since it was asked last, the oldest first."""
    last = query.lastProgress
    if last is None:
        return []
    told: dict[str, Any] = json.loads(last.json)
    if told.get("batchId") == counted.batch:
        return [told]
    # There may have been several; each of them costs a call to Java, so only then.
    return [json.loads(each.json) for each in query.recentProgress]


def _has_begun(status: dict[str, Any]) -> bool:
    """Whether a query has got past finding its topics: Spark is silent until a batch is done."""
    return bool(status["isDataAvailable"]) or str(status["message"]).startswith("Waiting")


def execute(settings: Settings, *, watcher: Watcher | None = None, force: bool = False) -> Outcome:
    """Run a pipeline in this process. Raises what it fails with; BusyError if it runs already."""
    kind = registry.load(settings.kind)
    check_conf(settings.conf)
    home = Home(settings.home)
    with home.held():
        if not force:
            check_elsewhere(settings)
        home.write_spec(without_secrets(settings))
        settings = begun_at(settings, home)
        stop = StopFlag()
        reporter = Reporter(
            _first_record(settings, home), bootstrap=settings.bootstrap, watcher=watcher
        )
        running = Running(settings, reporter, stop)
        stop.install()
        try:
            reporter.start()
            with _last_word(reporter):
                outcome = kind.run(settings, running)
                state = State.STOPPED if stop.is_asked else State.FINISHED
                reporter.close(state=state, outcome=outcome)
            return outcome
        finally:
            try:
                running.close()
            finally:
                stop.restore()


@contextmanager
def _last_word(reporter: Reporter) -> Iterator[None]:
    """However it ends, it is said; errors of Spark's become ours."""
    try:
        yield
    except KeyboardInterrupt:
        reporter.close(state=State.STOPPED, error="interrupted in the middle of a batch")
        raise
    except MoldauError as error:
        log.debug("the pipeline failed", exc_info=True)
        reporter.close(state=State.FAILED, error=str(error), hint=error.hint)
        raise
    except BaseException as error:
        log.debug("the pipeline failed", exc_info=True)
        ours = readable(error)
        if ours is None:
            text = f"{type(error).__name__}: {error}"
            reporter.close(state=State.FAILED, error=text.splitlines()[0])
            raise
        reporter.close(state=State.FAILED, error=str(ours), hint=ours.hint)
        raise ours from error


def _first_record(settings: Settings, home: Home) -> Record:
    pid = os.getpid()
    now = now_ms()
    return Record(
        name=settings.name,
        kind=settings.kind,
        state=State.STARTING,
        settings=without_secrets(settings),
        host=socket.gethostname(),
        pid=pid,
        process=started_at(pid) or "",
        home=home.location,
        started_at=now,
        updated_at=now,
    )


def check_elsewhere(settings: Settings) -> None:
    """Raises BusyError if a pipeline of that name runs somewhere else, as far as brokers know."""
    try:
        found = running_now(settings.name, settings.bootstrap, seconds_max=_LOOK_SECONDS_MAX)
    except ClientError as error:
        # Brokers that are away are the pipeline's own problem, and it says so better.
        log.warning("nobody knows whether pipeline %s runs elsewhere: %s", settings.name, error)
        return
    if found is not None and not (found.is_here and found.pid == os.getpid()):
        raise BusyError(
            f"pipeline {settings.name} is running already, on {found.host} as process {found.pid}",
            hint="stop it there · another one: --name NAME · if it is surely gone: --force",
        )


def running_now(name: str, bootstrap: str, *, seconds_max: float = 5.0) -> Record | None:
    """What the brokers know of a pipeline that runs, wherever. Raises ClientError."""
    with Board(bootstrap, seconds_max=seconds_max) as board:
        found = board.read().get(name)
    return found if found is not None and found.is_alive() else None


def begun_at(settings: Settings, home: Home) -> Settings:
    """The settings with where the last reset said to begin, which a checkpoint goes before."""
    start = home.read_start()
    if start is None:
        return settings
    topics = tuple(getattr(settings, "topics", ())) or tuple(start)
    if not set(topics) & set(start):
        # It reads something else now, of which the reset said nothing.
        return settings
    offsets = {topic: dict(start.get(topic, {})) for topic in topics}
    with KafkaClient(settings.bootstrap) as client:
        for topic, numbers in offsets.items():
            try:
                partitions = client.layout(topic).leaders
            except NotFoundError:
                continue
            # Those that were added since are read from their first record on.
            for partition in partitions:
                numbers.setdefault(str(partition), _EARLIEST)
    options = {
        name: value
        for name, value in settings.options.items()
        if name.lower() not in _START_OPTIONS
    }
    options["startingOffsets"] = json.dumps(offsets)
    return replace(settings, options=options)
