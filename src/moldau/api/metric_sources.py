"""Where /metrics reads numbers that are counted outside the services.

Each part counts for itself, and the numbers are read only when /metrics is requested; there is no
metrics registry.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from moldau.api.quotas import Quotas
from moldau.control.peer_clocks import ClockReading
from moldau.data.cleaner import CleanerMetrics
from moldau.data.scrub import ScrubMetrics
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId
from moldau.replica.flusher import Flusher
from moldau.replica.raft_counts import RaftCounts
from moldau.transactions.totals import EndedTransactions


class SlowLoopTurns(NamedTuple):
    """Turns of the event loop that blocked all clients for long."""

    turns: int
    seconds: float
    starved_seconds: float
    """The part in which the process got no CPU."""
    delay: Histogram
    """How late a timer was, 20 times a second: how long clients wait for the loop."""


class OneListener(NamedTuple):
    """A listener of any protocol."""

    name: str
    protocol: str
    connection_count: int
    accepted_total: int


class PeerNumbers(NamedTuple):
    """What this broker knows of another one."""

    peer: BrokerId
    is_connected: bool
    sent_bytes: int
    received_bytes: int
    clock: ClockReading | None
    """None until it was read."""


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
    queue_seconds: Callable[[], Histogram]
    """How long Kafka requests waited for their handler."""
    listeners: Callable[[], Iterable[OneListener]]
    """Those of Kafka and of peers."""
    peers: Callable[[], Iterable[PeerNumbers]]
    raft: RaftCounts
    ended_transactions: EndedTransactions
    certificates: Callable[[], Mapping[str, float]]
    """When each certificate expires, in seconds since 1970, by its file."""
    logins: Callable[[], Mapping[tuple[str, str], int]]
    """Of clients since the start, by mechanism and result."""
    quotas: Quotas
    flusher: Flusher
    disk_reserve_bytes: int
    """With less free space than this, produce requests are rejected."""
    cleaner: Callable[[], CleanerMetrics | None]
    """None during the start."""
    leaderships: Callable[[], int]
    """How often this broker became the leader of a partition, since the start."""
    slow_turns: Callable[[], SlowLoopTurns]
    scrub: Callable[[], ScrubMetrics | None]
    """None during the start."""
