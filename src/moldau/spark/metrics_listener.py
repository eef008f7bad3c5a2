"""Metrics of any streaming query, under the same names as those of pipelines.

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
from moldau.spark.pipelines.status import PipelineStatus, QueryProgress


class MetricsListener(StreamingQueryListener):
    """Serves metrics of all queries of the sessions that it is added to, by name or id."""

    def __init__(self, port: int, host: str = HOST_DEFAULT) -> None:
        self._server = MetricsServer(port, host)
        self.url = self._server.url
        self._running: dict[str, tuple[PipelineStatus, QueryProgress]] = {}

    def close(self) -> None:
        """Stop serving. Remove it from the session first: `spark.streams.removeListener`."""
        self._server.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        status = PipelineStatus(
            name=event.name or str(event.id), kind="query", state=PipelineState.RUNNING
        )
        self._running[str(event.runId)] = status, QueryProgress()
        self._server.update(status)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        run = str(event.progress.runId)
        if run in self._running:
            self._running[run][1].add([json.loads(event.progress.json)])
            self._update(run, PipelineState.RUNNING, is_idle=False)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._update(str(event.runId), PipelineState.RUNNING, is_idle=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        run = str(event.runId)
        state = PipelineState.FINISHED if event.exception is None else PipelineState.FAILED
        self._update(run, state, is_idle=True)
        self._running.pop(run, None)

    def _update(self, run: str, state: PipelineState, *, is_idle: bool) -> None:
        """Ignores a query that was started before this listener."""
        if run in self._running:
            status, counted = self._running[run]
            progress = counted.progress
            if is_idle:
                progress = replace(progress, rows_per_second=0.0)
            self._server.update(replace(status, state=state, progress=progress))
