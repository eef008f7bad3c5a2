"""/metrics: the broker's metrics for Prometheus, collected when they are requested.

`table.py` defines them all; one module for each subject collects them; `limits.py` bounds them.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterable
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.lag_history import LagHistory
from moldau.api.leader_ends import LeaderEnds
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
from moldau.edge.http.metrics.process import process_families
from moldau.edge.http.metrics.replication import lag_families, peer_families, raft_families
from moldau.edge.http.metrics.storage import loop_families, storage_families
from moldau.edge.http.metrics.table import family
from moldau.edge.http.metrics.work import (
    pipeline_families,
    queue_families,
    transaction_families,
)
from moldau.edge.http.node.merge import Node
from moldau.edge.http.query_parameters import bad_parameter
from moldau.edge.http.responses import HEADERS
from moldau.edge.http.visits import session_of
from moldau.model import log_events as events
from moldau.model.prometheus_text import MEDIA_TYPE, MetricFamily, lines_of

log = logging.getLogger(__name__)

DETAIL_PARTITION = "partition"

Families = AsyncIterable[MetricFamily] | Iterable[MetricFamily]
"""What one section collects."""


def routes(
    sources: MetricSources, traffic: Callable[[], HttpTraffic], node: Node | None = None
) -> list[Route]:
    """`node`: whose processes are asked, too, at the address that they share."""
    collector = Collector(sources, traffic)

    # As with probes, unknown parameters are ignored.
    async def metrics(request: Request) -> Response:
        view = session_of(request).cluster.metrics()
        details = request.query_params.getlist("detail")
        if set(details) - {DETAIL_PARTITION}:
            raise bad_parameter("detail", f"must be {DETAIL_PARTITION}")
        has_detail = bool(details)
        text = await collector.text(view, has_detail=has_detail)
        if node is not None and node.is_meant(request.scope):
            query = b"detail=partition" if has_detail else b""
            text = await node.metrics(text, query, family("moldau_node_process_up"))
        return Response(text, headers=HEADERS, media_type=MEDIA_TYPE)

    return [Route("/metrics", metrics, methods=["GET"])]


class Collector:
    """Collects the metrics of one broker; two scrapes do not do so at the same time."""

    def __init__(self, sources: MetricSources, traffic: Callable[[], HttpTraffic]) -> None:
        self._sources = sources
        self._traffic = traffic
        self._history = LagHistory()
        self._ends = LeaderEnds()
        self._pipelines = PipelineReports()
        self._turn = asyncio.Lock()
        self._failure_count = 0

    async def text(self, view: MetricsView, *, has_detail: bool) -> str:
        families: list[MetricFamily] = []
        async with self._turn:
            for collect in self._sections(view, has_detail=has_detail):
                families += await self._collected(collect)
            families.append(family("moldau_metrics_failures_total", self._failure_count))
        lines = lines_of(families)
        parts: list[str] = []
        while some := list(islice(lines, limits.LINES_PER_TURN)):
            parts += some
            await asyncio.sleep(0)
        parts.append("")
        return "\n".join(parts)

    async def _collected(self, collect: Callable[[], Families]) -> list[MetricFamily]:
        """A section that fails is left out: an error in one does not hide all others."""
        try:
            families = collect()
            if isinstance(families, AsyncIterable):
                return [one async for one in families]
            await asyncio.sleep(0)
            return list(families)
        except Exception:
            self._failure_count += 1
            log.exception("a part of /metrics is missing", extra=events.INTERNAL_ERROR())
            return []

    def _sections(self, view: MetricsView, *, has_detail: bool) -> Iterable[Callable[[], Families]]:
        """All families, in a fixed order."""
        sources, traffic = self._sources, self._traffic()
        return (
            lambda: cluster_families(view),
            lambda: partition_families(view, has_detail=has_detail),
            lambda: lag_families(view),
            lambda: raft_families(sources),
            lambda: peer_families(sources),
            lambda: kafka_families(view, sources),
            lambda: listener_families(sources, traffic),
            lambda: security_families(view, sources),
            lambda: http_families(traffic),
            lambda: group_families(view, self._history, self._ends, has_detail=has_detail),
            lambda: queue_families(view),
            lambda: transaction_families(view, sources),
            lambda: storage_families(view, sources),
            lambda: loop_families(sources),
            lambda: pipeline_families(view, self._pipelines),
            process_families,
        )
