"""JSON types of the live overview of a cluster: GET /api/v1/overview and its stream.

What a broker did not say is null. Rates are per second, times in milliseconds.
"""

from typing import Literal

from msgspec import Struct

from moldau.model.topology import Endpoint


class OverviewProblem(Struct, frozen=True, kw_only=True):
    text: str
    remedy: str
    broker: int | None
    topic: str | None


class Health(Struct, frozen=True, kw_only=True):
    state: Literal["healthy", "degraded", "failing"]
    """failing: something cannot be written, read or changed now."""
    sentence: str
    problems: list[OverviewProblem]


class BrokerLive(Struct, frozen=True, kw_only=True):
    """One broker, and what it said of itself last."""

    id: int
    rack: str | None
    machine: str | None = None
    state: str
    alive: bool
    is_controller: bool
    http: Endpoint | None
    kafka: Endpoint
    grpc: Endpoint | None = None
    version: str | None = None
    started_at_ms: int | None = None
    cpu: float | None = None
    """1: one core."""
    resident_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    leaders: int | None = None
    replicas: int | None = None
    connections: int | None = None
    """Of Kafka and HTTP clients."""
    bytes_in: float | None = None
    bytes_out: float | None = None
    records_in: float | None = None
    loop_delay_ms: float | None = None
    """99 % of timers were not later than this; as with all quantiles, since the last sample."""
    flush_ms: float | None = None
    log_bytes: int | None = None
    silent: bool
    """It did not respond in time."""


class Counts(Struct, frozen=True, kw_only=True):
    topics: int
    partitions: int
    leaderless: int
    under_replicated: int
    groups: int | None


class Leaderless(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


class UnderReplicated(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    missing: list[int]
    """Brokers whose replicas are not in sync."""


class Rates(Struct, frozen=True, kw_only=True):
    bytes_in: float | None = None
    bytes_out: float | None = None
    records_in: float | None = None
    requests: float | None = None
    """Of Kafka clients."""


class Latency(Struct, frozen=True, kw_only=True):
    """Over all brokers, since the last sample; null without such requests."""

    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    flush_p99_ms: float | None = None


class LaggingGroup(Struct, frozen=True, kw_only=True):
    group: str
    lag: int
    lag_seconds: float | None


class Lag(Struct, frozen=True, kw_only=True):
    records: int | None
    """Of all groups."""
    groups: list[LaggingGroup]
    """Those that are furthest behind."""


class HappenedEvent(Struct, frozen=True, kw_only=True):
    id: int
    """Rises with each event of the broker that responds; a new process begins again."""
    at_ms: int
    kind: str
    text: str
    broker: int | None
    topic: str | None


class History(Struct, frozen=True, kw_only=True):
    """Lists of the same length, the oldest first."""

    at_ms: list[int]
    bytes_in: list[float | None]
    bytes_out: list[float | None]
    records_in: list[float | None]
    produce_p99_ms: list[float | None]
    commit_p99_ms: list[float | None]
    lag: list[int | None]


class Overview(Struct, frozen=True, kw_only=True):
    """The whole cluster, as seen by one broker."""

    at_ms: int
    cluster_id: str
    answered_by: int
    controller: int
    """-1: none."""
    metadata_version: int
    health: Health
    brokers: list[BrokerLive]
    counts: Counts
    leaderless: list[Leaderless]
    """At most 100, as `under_replicated`; `counts` are exact."""
    under_replicated: list[UnderReplicated]
    rates: Rates
    latency: Latency
    lag: Lag
    events: list[HappenedEvent]
    """The newest first. In a stream: those since the last message."""
    history: History | None
    """In a stream: null in all messages but the first."""
