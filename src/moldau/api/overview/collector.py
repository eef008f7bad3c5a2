"""Makes the sample of this broker from what its parts count anyway; nothing is rendered."""

import asyncio
from collections.abc import Callable
from typing import Final

import moldau
from moldau.api.local_replicas import LocalReplicas
from moldau.api.metric_sources import MetricSources
from moldau.api.overview.group_lags import GroupLags
from moldau.api.overview.sample import BrokerSample, encode_sample
from moldau.api.process_numbers import cpu_seconds, memory, started_at
from moldau.api.topic_rates import TopicRates
from moldau.control.cluster_service import ClusterService
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId

_REPLICAS_PER_TURN: Final = 200
_PRODUCE: Final = "Produce"


class SampleCollector:
    def __init__(
        self,
        *,
        clock: Clock,
        cluster: ClusterService,
        replicas: LocalReplicas,
        lags: GroupLags,
        topic_rates: TopicRates,
        disk_free_bytes: Callable[[], int],
        disk_total_bytes: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._replicas = replicas
        self._lags = lags
        self._topic_rates = topic_rates
        self._disk_free_bytes = disk_free_bytes
        self._disk_total_bytes = disk_total_bytes
        self._began_ms = clock.wall_ms()
        self._sources: MetricSources | None = None
        self._http_connections: Callable[[], int] = lambda: 0

    def attach(self, sources: MetricSources, http_connections: Callable[[], int]) -> None:
        """The protocol servers, which are built later."""
        self._sources = sources
        self._http_connections = http_connections

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """A peer asks for the sample."""
        return encode_sample(await self.sample())

    async def sample(self) -> BrokerSample:
        """Raises RefusedError while the broker starts."""
        sources = self._sources
        if sources is None:
            raise RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is starting")
        leaders = replicas = log_bytes = 0
        for replica in self._replicas:
            replicas += 1
            leaders += replica.is_leader
            log_bytes += replica.size_bytes
            if replicas % _REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)
        lag = await self._lags.totals()
        self._topic_rates.note()
        await asyncio.sleep(0)
        traffic = self._replicas.total_traffic(self._cluster.image.topics)
        await asyncio.sleep(0)
        used, started = memory(), started_at()
        return BrokerSample(
            at=self._clock.monotonic(),
            version=moldau.__version__,
            started_at_ms=self._began_ms if started is None else round(started * 1000),
            reasons=tuple(self._cluster.health()),
            cpu_seconds=cpu_seconds(),
            resident_bytes=None if used is None else used.resident_bytes,
            disk_free_bytes=self._disk_free_bytes(),
            disk_total_bytes=self._disk_total_bytes(),
            log_bytes=log_bytes,
            leaders=leaders,
            replicas=replicas,
            offline=self._replicas.offline_count,
            connections=sources.listener.connection_count + self._http_connections(),
            bytes_in=traffic.written_bytes,
            bytes_out=traffic.read_bytes,
            records_in=traffic.written_records,
            requests=sum(sources.requests_by_api().values()),
            produce=_counts(sources.seconds_by_api().get(_PRODUCE)),
            commit=_counts(sources.raft.commit_seconds),
            flush=_counts(sources.flusher.seconds),
            loop_delay=_counts(sources.slow_turns().delay),
            groups=lag.groups,
            lag_records=lag.records,
            lagging=lag.lagging,
        )


def _counts(durations: Histogram | None) -> tuple[int, ...]:
    return () if durations is None else tuple(durations.counts)
