"""Responsible for metrics of anybody's streaming queries, told as those of pipelines are.

listener = moldau.spark.MetricsListener(port=9090)
spark.streams.addListener(listener)
"""

import json
from dataclasses import replace

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from moldau.spark.metrics import HOST_DEFAULT, MetricsServer
from moldau.spark.pipelines.spec import PipelineState
from moldau.spark.pipelines.status import QueryProgress, Record


class MetricsListener(StreamingQueryListener):
    """Serves metrics of all queries of the sessions that it is added to, by name or id."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._server = MetricsServer(port, host)
        self.url = self._server.url
        self._running: dict[str, tuple[Record, QueryProgress]] = {}

    def close(self) -> None:
        """Stop serving. Remove it from the session first: `spark.streams.removeListener`."""
        self._server.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        record = Record(name=event.name or str(event.id), kind="query", state=PipelineState.RUNNING)
        self._running[str(event.runId)] = record, QueryProgress()
        self._server.tell(record)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        run = str(event.progress.runId)
        if run in self._running:
            self._running[run][1].take([json.loads(event.progress.json)])
            self._tell(run, PipelineState.RUNNING, is_idle=False)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._tell(str(event.runId), PipelineState.RUNNING, is_idle=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        run = str(event.runId)
        self._tell(
            run,
            PipelineState.FINISHED if event.exception is None else PipelineState.FAILED,
            is_idle=True,
        )
        self._running.pop(run, None)

    def _tell(self, run: str, state: PipelineState, *, is_idle: bool) -> None:
        """How a query is, unless it was started before this listener."""
        if run in self._running:
            record, counted = self._running[run]
            progress = counted.progress
            if is_idle:
                progress = replace(progress, rows_per_second=0.0)
            self._server.tell(replace(record, state=state, progress=progress))
