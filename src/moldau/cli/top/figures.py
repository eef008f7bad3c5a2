"""Computes the figures that `moldau top` shows from a snapshot of the cluster.

None is a figure that is not known: the broker does not respond, is older than the metric, or there
was only one scrape so far. The names of the fields are those of the JSON output.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.cli.cluster.problems import Problem, problem_rows, problems
from moldau.cli.output import counted
from moldau.cli.top.poller import Snapshot
from moldau.cli.top.scrapes import Span, added, quantile

if TYPE_CHECKING:
    from moldau.model.topology import Topology, TopologyBroker, TopologyTopic

_DISK_SHARE_MIN: Final = 0.1
_P99: Final = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """One broker."""

    id: int
    state: str
    """ok, draining, not ready, no answer, down."""
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


class _All:
    """The spans of all brokers that responded."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.by_broker = {
            number: answer.span for number, answer in snapshot.answers.items() if answer.span
        }
        self.spans = list(self.by_broker.values())

    def rate(self, name: str, **where: str) -> float | None:
        return total(span.rate(name, **where) for span in self.spans)

    def value(self, name: str, **where: str) -> float | None:
        return total(span.new.value(name, **where) for span in self.spans)

    def largest(self, name: str, **where: str) -> float | None:
        return max(known(span.new.value(name, **where) for span in self.spans), default=None)

    def quantile(self, share: float, name: str, **where: str) -> float | None:
        return quantile(share, added(span.buckets(name, **where) for span in self.spans))

    def values(self, name: str, label: str, **where: str) -> dict[str, float]:
        return _merged(span.new.sums(name, label, **where) for span in self.spans)

    def rates(self, name: str, label: str, **where: str) -> dict[str, float]:
        return _merged(span.rates(name, label, **where) for span in self.spans)


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    found = known(values)
    return sum(found) if found else None


def _merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            found[key] += value
    return dict(found)


def compute(snapshot: Snapshot) -> ClusterFigures:
    topology, everywhere = snapshot.topology, _All(snapshot)
    found = health_problems(snapshot)
    level = health_level(snapshot, found)
    groups = list(_groups(everywhere))
    partitions = sum(len(topic.partitions) for topic in topology.topics)
    messages = everywhere.values("moldau_queue_messages", "state")
    return ClusterFigures(
        cluster_id=topology.cluster_id,
        at=snapshot.at,
        health=level,
        summary=summary(snapshot, level, found, partitions),
        problems=problem_rows(found),
        brokers_responding=len(everywhere.spans),
        controller=topology.controller if topology.controller >= 0 else None,
        partitions=partitions,
        under_replicated=topology.under_replicated,
        leaderless=topology.leaderless,
        written_bytes=everywhere.rate("moldau_written_bytes_total"),
        written_records=everywhere.rate("moldau_written_records_total"),
        read_bytes=everywhere.rate("moldau_read_bytes_total"),
        read_records=everywhere.rate("moldau_read_records_total"),
        produce_p50_seconds=everywhere.quantile(0.5, "moldau_kafka_request_seconds", api="Produce"),
        produce_p99_seconds=everywhere.quantile(
            _P99, "moldau_kafka_request_seconds", api="Produce"
        ),
        commit_p50_seconds=everywhere.quantile(0.5, "moldau_produce_commit_seconds"),
        commit_p99_seconds=everywhere.quantile(_P99, "moldau_produce_commit_seconds"),
        lag_records=total(each.lag_records for each in groups),
        lag_seconds=max(known(each.lag_seconds for each in groups), default=None),
        queue_ready=messages.get("ready"),
        queue_leased=messages.get("leased"),
        queue_delayed=messages.get("delayed"),
        queue_dead=messages.get("dead"),
        elections=everywhere.rate("moldau_elections_total"),
        election_causes=everywhere.values("moldau_elections_total", "cause"),
        brokers=[_broker(broker, snapshot, everywhere) for broker in topology.brokers],
        topics=list(_topics(topology, everywhere)),
        groups=groups,
        queues=list(_queues(everywhere)),
        pipelines=list(_pipelines(everywhere)),
    )


# ---- health


def health_problems(snapshot: Snapshot) -> list[Problem]:
    """What the topology and the brokers themselves show."""
    found = problems(snapshot.topology)
    for broker in snapshot.topology.brokers:
        answer = snapshot.answers[broker.id]
        if answer.failure and broker.alive:
            text = f"broker {broker.id} does not respond over HTTP: {answer.failure}"
            found.append(Problem(text, f"check it: moldau broker status {broker.id}"))
        for reason in answer.reasons:
            remedy = f"check it: moldau broker status {broker.id}"
            found.append(Problem(f"broker {broker.id}: {reason}", remedy))
        if answer.span is not None:
            found += _problems_of(broker.id, answer.span)
    return found


def _problems_of(number: int, span: Span) -> Iterable[Problem]:
    free = span.new.value("moldau_disk_free_bytes")
    size = span.new.value("moldau_disk_total_bytes")
    if free is not None and size and free < _DISK_SHARE_MIN * size:
        text = f"the disk of broker {number} is {1 - free / size:.0%} full"
        yield Problem(text, "free space there, or shorten retention: moldau topic alter --help")
    if offline := span.new.value("moldau_partitions_offline"):
        text = f"broker {number}: {counted(int(offline), 'replica')} offline"
        yield Problem(text, "its log has the reason: a damaged log, or a full disk")
    if short := span.new.value("moldau_partitions_under_min_insync"):
        text = f"{counted(int(short), 'partition')} of broker {number} reject acks=all"
        yield Problem(text, "fewer are in sync than min.insync.replicas: start the other brokers")


def health_level(snapshot: Snapshot, found: list[Problem]) -> str:
    topology = snapshot.topology
    if snapshot.silent_seconds and not any(each.span for each in snapshot.answers.values()):
        return "unreachable"
    if topology.controller < 0 or topology.leaderless:
        return "unavailable"
    return "degraded" if found else "healthy"


def summary(snapshot: Snapshot, level: str, found: list[Problem], partitions: int) -> str:
    """The health in one sentence."""
    brokers = snapshot.topology.brokers
    if level == "unreachable":
        return (
            f"no broker has responded for {snapshot.silent_seconds:.0f} s; "
            f"{counted(len(brokers), 'broker')} tried"
        )
    if found:
        return "; ".join(each.text for each in found)
    replicas = "all their replicas in sync" if partitions != 1 else "all its replicas in sync"
    verb = "has" if partitions == 1 else "have"
    of_all = "the broker responds" if len(brokers) == 1 else f"all {len(brokers)} brokers respond"
    if not partitions:
        return f"{of_all}; there are no partitions yet"
    return f"{of_all}, {counted(partitions, 'partition')} {verb} a leader and {replicas}"


# ---- brokers


def _broker(broker: "TopologyBroker", snapshot: Snapshot, everywhere: _All) -> BrokerFigures:
    answer = snapshot.answers[broker.id]
    span = answer.span
    behind = everywhere.values("moldau_replication_lag_records", "follower")
    late = everywhere.largest("moldau_replication_lag_seconds", follower=str(broker.id))

    def rate(name: str, **where: str) -> float | None:
        return None if span is None else span.rate(name, **where)

    def value(name: str, **where: str) -> float | None:
        return None if span is None else span.new.value(name, **where)

    def p99(name: str, **where: str) -> float | None:
        return None if span is None else quantile(_P99, span.buckets(name, **where))

    versions = {} if span is None else span.new.sums("moldau_build_info", "version")
    skews = {} if span is None else span.new.sums("moldau_peer_clock_skew_seconds", "peer")
    started = value("process_start_time_seconds")
    return BrokerFigures(
        id=broker.id,
        state=_state(broker, bool(answer.failure), bool(answer.reasons)),
        reason=answer.failure or "; ".join(answer.reasons),
        controller=broker.is_controller,
        version=next(iter(versions), None),
        leaders=broker.leaders,
        replicas=broker.replicas,
        written_bytes=rate("moldau_written_bytes_total"),
        read_bytes=rate("moldau_read_bytes_total"),
        produce_p99_seconds=p99("moldau_kafka_request_seconds", api="Produce"),
        commit_p99_seconds=p99("moldau_produce_commit_seconds"),
        flush_p99_seconds=p99("moldau_log_flush_seconds"),
        loop_delay_p99_seconds=p99("moldau_loop_delay_seconds"),
        cpu_cores=rate("process_cpu_seconds_total"),
        memory_bytes=value("process_resident_memory_bytes"),
        disk_free_bytes=value("moldau_disk_free_bytes"),
        disk_total_bytes=value("moldau_disk_total_bytes"),
        connections=value("moldau_kafka_connections"),
        uptime_seconds=None if started is None else max(0.0, snapshot.at - started),
        elections=rate("moldau_elections_total"),
        elections_total=value("moldau_elections_total"),
        leaderships_total=value("moldau_leaderships_total"),
        epoch_changes=rate("moldau_raft_epoch_changes_total"),
        peers_connected=value("moldau_peer_connected"),
        peer_sent_bytes=rate("moldau_peer_sent_bytes_total"),
        peer_received_bytes=rate("moldau_peer_received_bytes_total"),
        behind_records=behind.get(str(broker.id)),
        behind_seconds=late,
        clock_skew_seconds=max(map(abs, skews.values()), default=None),
    )


def _state(broker: "TopologyBroker", is_silent: bool, is_not_ready: bool) -> str:
    if not broker.alive:
        return "down"
    if is_silent:
        return "no answer"
    if is_not_ready:
        return "not ready"
    return "draining" if broker.state == "draining" else "ok"


# ---- topics, groups, queues, pipelines


def _topics(topology: "Topology", everywhere: _All) -> Iterable[TopicFigures]:
    names = ("written_bytes", "written_records", "read_bytes", "read_records")
    rates = {name: everywhere.rates(f"moldau_topic_{name}_total", "topic") for name in names}
    sizes = everywhere.values("moldau_topic_log_bytes", "topic")
    for topic in topology.topics:
        yield TopicFigures(
            topic=topic.name,
            partitions=len(topic.partitions),
            replicas=_replicas(topic),
            leaderless=sum(part.leader < 0 for part in topic.partitions),
            under_replicated=sum(part.is_under_replicated for part in topic.partitions),
            size_bytes=sizes.get(topic.name),
            **{name: rates[name].get(topic.name) for name in names},
        )


def _replicas(topic: "TopologyTopic") -> int:
    return max((len(part.replicas) for part in topic.partitions), default=0)


def _pairs(spans: Iterable[Span], name: str) -> set[tuple[str, str]]:
    """The groups and topics for which a metric has series."""
    return {
        (group, topic)
        for span in spans
        for group in span.new.sums(name, "group")
        for topic in span.new.sums(name, "topic", group=group)
    }


def _groups(everywhere: _All) -> Iterable[GroupFigures]:
    for group, topic in sorted(_pairs(everywhere.spans, "moldau_group_lag")):
        labels = {"group": group, "topic": topic}
        # Not the sum: a coordinator that has just moved may still be there twice.
        yield GroupFigures(
            group=group,
            topic=topic,
            lag_records=everywhere.largest("moldau_group_lag", **labels) or 0.0,
            lag_seconds=everywhere.largest("moldau_group_lag_seconds", **labels),
            partitions_unknown=everywhere.largest("moldau_group_lag_unknown_partitions", **labels)
            or 0.0,
        )


def _queues(everywhere: _All) -> Iterable[QueueFigures]:
    for group, topic in sorted(_pairs(everywhere.spans, "moldau_queue_messages")):
        labels = {"group": group, "topic": topic}
        messages = everywhere.values("moldau_queue_messages", "state", **labels)
        yield QueueFigures(
            group=group,
            topic=topic,
            ready=messages.get("ready"),
            leased=messages.get("leased"),
            delayed=messages.get("delayed"),
            dead=messages.get("dead"),
            deliveries=everywhere.rate("moldau_queue_deliveries_total", **labels),
            redeliveries=everywhere.rate("moldau_queue_redeliveries_total", **labels),
            acks=everywhere.rate("moldau_queue_settled_total", outcome="ack", **labels),
            settle_p99_seconds=everywhere.quantile(
                _P99, "moldau_queue_settle_seconds", group=group
            ),
            dead_letters_total=everywhere.value("moldau_queue_dead_letters_total", **labels),
        )


def _pipelines(everywhere: _All) -> Iterable[PipelineFigures]:
    for name in sorted(everywhere.values("moldau_pipeline_info", "pipeline")):
        where = {"pipeline": name}
        kinds = everywhere.values("moldau_pipeline_info", "kind", **where)
        states = everywhere.values("moldau_pipeline_info", "state", **where)
        yield PipelineFigures(
            pipeline=name,
            kind=next(iter(kinds), ""),
            state=next(iter(states), ""),
            rows=everywhere.rate("moldau_pipeline_rows_total", **where),
            batches=everywhere.rate("moldau_pipeline_batches_total", **where),
            lag_records=everywhere.largest("moldau_pipeline_lag_records", **where),
            dead_letters_total=everywhere.largest("moldau_pipeline_dead_letters_total", **where),
            age_seconds=everywhere.largest("moldau_pipeline_status_age_seconds", **where),
        )
