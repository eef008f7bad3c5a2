"""The figures that `moldau top` shows.

None is a figure that is not known: the broker does not respond, is older than the metric, or there
was only one scrape so far. The names of the fields are those of the JSON output.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """One broker."""

    id: int
    state: str
    """ok, draining, not ready, no response, rejects (our login), down."""
    reason: str
    controller: bool
    version: str | None
    leaders: int
    replicas: int
    written_bytes: float | None
    """Per second, as all rates."""
    read_bytes: float | None
    produce_p99_seconds: float | None
    commit_p99_seconds: float | None
    flush_p99_seconds: float | None
    loop_delay_p99_seconds: float | None
    cpu_cores: float | None
    memory_bytes: float | None
    disk_free_bytes: float | None
    disk_total_bytes: float | None
    connections: float | None
    uptime_seconds: float | None
    elections: float | None
    """In which it stood, per second."""
    elections_total: float | None
    leaderships_total: float | None
    epoch_changes: float | None
    peers_connected: float | None
    peer_sent_bytes: float | None
    peer_received_bytes: float | None
    behind_records: float | None
    """Records that it, as a follower, has not flushed yet."""
    behind_seconds: float | None
    clock_skew_seconds: float | None
    """Largest difference to a peer's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """One topic, over all brokers."""

    topic: str
    internal: bool
    partitions: int
    replicas: int
    """Of a partition."""
    leaderless: int
    under_replicated: int
    written_bytes: float | None
    written_records: float | None
    read_bytes: float | None
    read_records: float | None
    size_bytes: float | None
    """On all brokers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One consumer group in one topic."""

    group: str
    topic: str
    lag_records: float
    lag_seconds: float | None
    partitions_unknown: float
    """Partitions of which the coordinator has no replica; their lag is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """One queue group in one topic."""

    group: str
    topic: str
    ready: float | None
    leased: float | None
    delayed: float | None
    dead: float | None
    deliveries: float | None
    redeliveries: float | None
    acks: float | None
    settle_p99_seconds: float | None
    """Of the group, over all its topics."""
    dead_letters_total: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFigures:
    """One Spark pipeline."""

    pipeline: str
    kind: str
    state: str
    rows: float | None
    batches: float | None
    lag_records: float | None
    dead_letters_total: float | None
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """The whole cluster."""

    cluster_id: str
    at: float
    """Seconds since 1970."""
    health: str
    """healthy, degraded, unavailable (no controller, or partitions without a leader), unreachable.
    """
    summary: str
    problems: list[dict[str, str]]
    brokers_responding: int
    controller: int | None
    partitions: int
    under_replicated: int
    leaderless: int
    written_bytes: float | None
    written_records: float | None
    read_bytes: float | None
    read_records: float | None
    produce_p50_seconds: float | None
    produce_p99_seconds: float | None
    commit_p50_seconds: float | None
    commit_p99_seconds: float | None
    lag_records: float | None
    lag_seconds: float | None
    queue_ready: float | None
    queue_leased: float | None
    queue_delayed: float | None
    queue_dead: float | None
    elections: float | None
    election_causes: dict[str, float]
    """Since the brokers have started."""
    brokers: list[BrokerFigures]
    topics: list[TopicFigures]
    groups: list[GroupFigures]
    queues: list[QueueFigures]
    pipelines: list[PipelineFigures]
