"""/metrics: the broker's metrics for Prometheus, collected when they are requested.

`table.py` defines them all; one module for each subject collects them; `limits.py` bounds them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.api.pipeline_reports import PipelineReports
from moldau.edge.http.metrics import limits
from moldau.edge.http.metrics.clients import (
    HttpTraffic,
    http_families,
    kafka_families,
    listener_families,
    security_families,
)
from moldau.edge.http.metrics.cluster import cluster_families, partition_families
from moldau.edge.http.metrics.groups import group_families
from moldau.edge.http.metrics.lag_history import LagHistory
from moldau.edge.http.metrics.process import process_families
from moldau.edge.http.metrics.replication import lag_families, peer_families, raft_families
from moldau.edge.http.metrics.storage import loop_families, storage_families
from moldau.edge.http.metrics.work import (
    pipeline_families,
    queue_families,
    transaction_families,
)
from moldau.edge.http.responses import HEADERS
from moldau.edge.http.visits import session_of
from moldau.model.prometheus_text import MEDIA_TYPE, MetricFamily, lines_of

DETAIL_PARTITION = "partition"


def routes(sources: MetricSources, traffic: Callable[[], HttpTraffic]) -> list[Route]:
    collector = Collector(sources, traffic)

    # As with probes, unknown parameters are ignored.
    async def metrics(request: Request) -> Response:
        view = session_of(request).cluster.metrics()
        has_detail = DETAIL_PARTITION in request.query_params.getlist("detail")
        text = await collector.text(view, has_detail=has_detail)
        return Response(text, headers=HEADERS, media_type=MEDIA_TYPE)

    return [Route("/metrics", metrics, methods=["GET"])]


class Collector:
    """Collects the metrics of one broker; two scrapes do not do so at the same time."""

    def __init__(self, sources: MetricSources, traffic: Callable[[], HttpTraffic]) -> None:
        self._sources = sources
        self._traffic = traffic
        self._history = LagHistory()
        self._pipelines = PipelineReports()
        self._turn = asyncio.Lock()

    async def text(self, view: MetricsView, *, has_detail: bool) -> str:
        async with self._turn:
            families = [one async for one in self._families(view, has_detail=has_detail)]
        lines = lines_of(families)
        parts: list[str] = []
        while some := list(islice(lines, limits.LINES_PER_TURN)):
            parts += some
            await asyncio.sleep(0)
        parts.append("")
        return "\n".join(parts)

    async def _families(
        self, view: MetricsView, *, has_detail: bool
    ) -> AsyncIterator[MetricFamily]:
        """All families, in a fixed order."""
        sources, traffic = self._sources, self._traffic()
        async for one in cluster_families(view):
            yield one
        async for one in partition_families(view, has_detail=has_detail):
            yield one
        async for one in lag_families(view):
            yield one
        for one in (
            *raft_families(sources),
            *peer_families(sources),
            *kafka_families(view, sources),
            *listener_families(sources, traffic),
            *security_families(view, sources),
            *http_families(traffic),
        ):
            yield one
        async for one in group_families(view, self._history, has_detail=has_detail):
            yield one
        await asyncio.sleep(0)
        for one in (
            *queue_families(view),
            *transaction_families(view, sources),
            *storage_families(view, sources),
            *loop_families(sources),
        ):
            yield one
        async for one in pipeline_families(view, self._pipelines):
            yield one
        for one in process_families():
            yield one
