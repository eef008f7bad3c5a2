"""Where /metrics reads numbers that are counted outside the services.

Each part counts for itself, and the numbers are read only when /metrics is requested; there is no
metrics registry.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.api.quotas import Quotas
from moldau.data.cleaner import CleanerMetrics
from moldau.data.scrub import ScrubMetrics
from moldau.model.histogram import Histogram
from moldau.replica.flusher import Flusher


class SlowLoopTurns(NamedTuple):
    """Turns of the event loop that blocked all clients for long."""

    turns: int
    seconds: float
    starved_seconds: float
    """The part in which the process got no CPU."""


class ListenerCounts(Protocol):
    """Numbers of the listeners of one protocol."""

    @property
    def connections_max(self) -> int:
        """As configured; the limit of open files may allow less."""
        ...

    @property
    def connection_count(self) -> int: ...

    @property
    def inflight_bytes(self) -> int: ...

    @property
    def accepted_total(self) -> int: ...

    @property
    def refused_total(self) -> int: ...

    @property
    def failed_total(self) -> int: ...


class MetricSources(Struct, frozen=True, kw_only=True):
    """Counters above and below the services."""

    requests_by_api: Callable[[], Mapping[str, int]]
    """Kafka requests since the start, by API."""
    seconds_by_api: Callable[[], Mapping[str, Histogram]]
    """Their durations, by API."""
    listener: ListenerCounts
    """Of the Kafka protocol."""
    certificates: Callable[[], Mapping[str, float]]
    """When each certificate expires, in seconds since 1970, by its file."""
    logins: Callable[[], Mapping[tuple[str, str], int]]
    """Of clients since the start, by mechanism and result."""
    quotas: Quotas
    flusher: Flusher
    cleaner: Callable[[], CleanerMetrics | None]
    """None during the start."""
    leaderships: Callable[[], int]
    """How often this broker became the leader of a partition, since the start."""
    slow_turns: Callable[[], SlowLoopTurns]
    scrub: Callable[[], ScrubMetrics | None]
    """None during the start."""
    disk_reserve_bytes: int
    """With less free space the broker rejects writes."""
