"""Owns metrics of anybody's streaming queries: a listener that tells what pipelines tell.

listener = moldau.spark.MetricsListener(port=9090)
spark.streams.addListener(listener)
"""

import json
from dataclasses import replace
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from moldau.spark.metrics import HOST_DEFAULT, MetricsServer
from moldau.spark.pipelines.spec import State
from moldau.spark.pipelines.state import Record
from moldau.spark.pipelines.watching import QueryProgress


class MetricsListener(StreamingQueryListener):
    """Serves metrics of all queries of the sessions that it is added to, by name or id."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._server = MetricsServer(port, host)
        self._running: dict[str, tuple[Record, QueryProgress]] = {}

    @property
    def url(self) -> str:
        return self._server.url

    def close(self) -> None:
        """Stop serving. Remove it from the session first: `spark.streams.removeListener`."""
        self._server.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        name = event.name or str(event.id)
        record = Record(name=name, kind="query", state=State.RUNNING)
        self._running[str(event.runId)] = record, QueryProgress()
        self._server.tell(record)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        told: dict[str, Any] = json.loads(event.progress.json)
        self._take(str(event.progress.runId), [told], is_idle=False)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._take(str(event.runId), [], is_idle=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        record, counted = self._running.pop(str(event.runId), (None, None))
        if record is not None and counted is not None:
            state = State.FINISHED if event.exception is None else State.FAILED
            self._server.tell(replace(_at(record, counted, is_idle=True), state=state))

    def _take(self, run: str, told: list[dict[str, Any]], *, is_idle: bool) -> None:
        if run in self._running:
            record, counted = self._running[run]
            counted.take(told)
            self._server.tell(_at(record, counted, is_idle=is_idle))


def _at(record: Record, counted: QueryProgress, *, is_idle: bool) -> Record:
    progress = counted.progress(dead_letters=0, is_idle=is_idle, is_continuous=True)
    return replace(record, progress=progress)
