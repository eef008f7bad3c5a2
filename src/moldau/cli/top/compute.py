"""Computes the figures from a snapshot of the cluster."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from moldau.cli.cluster.problems import problem_rows
from moldau.cli.top.figures import (
    BrokerFigures,
    ClusterFigures,
    GroupFigures,
    PipelineFigures,
    QueueFigures,
    TopicFigures,
)
from moldau.cli.top.health import health_level, health_problems, summary
from moldau.cli.top.poller import Answer, Snapshot
from moldau.cli.top.scrapes import Span, Table, added, quantile

if TYPE_CHECKING:
    from moldau.model.topology import Topology, TopologyBroker

_P99: Final = 0.99
_PRODUCE: Final = {"api": "Produce"}


class _Spans:
    """The spans of some brokers, as one."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = list(spans)

    def value(self, name: str, **where: str) -> float | None:
        return total(span.new.value(name, **where) for span in self.spans)

    def rate(self, name: str, **where: str) -> float | None:
        return total(span.rate(name, **where) for span in self.spans)

    def quantile(self, share: float, name: str, **where: str) -> float | None:
        return quantile(share, added(span.buckets(name, **where) for span in self.spans))

    def values(self, name: str, *labels: str, **where: str) -> Table:
        return _merged(sum, (span.new.table(name, *labels, **where) for span in self.spans))

    def largest(self, name: str, *labels: str) -> Table:
        return _merged(max, (span.new.table(name, *labels) for span in self.spans))

    def rates(self, name: str, *labels: str, **where: str) -> Table:
        return _merged(sum, (span.rates(name, *labels, **where) for span in self.spans))


def _merged(merge: Callable[[list[float]], float], parts: Iterable[Table]) -> Table:
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for part in parts:
        for key, value in part.items():
            found[key].append(value)
    return {key: merge(values) for key, values in found.items()}


def total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    found = _known(values)
    return sum(found) if found else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def compute(snapshot: Snapshot) -> ClusterFigures:
    topology = snapshot.topology
    spans = _Spans(answer.span for answer in snapshot.answers.values() if answer.span is not None)
    found = health_problems(snapshot)
    level = health_level(snapshot, found)
    groups = list(_groups(spans))
    partitions = sum(len(topic.partitions) for topic in topology.topics)
    messages = spans.values("moldau_queue_messages", "state")
    causes = spans.values("moldau_elections_total", "cause")
    return ClusterFigures(
        cluster_id=topology.cluster_id,
        at=snapshot.at,
        health=level,
        summary=summary(snapshot, level, found, partitions),
        problems=problem_rows(found),
        brokers_responding=len(spans.spans),
        controller=topology.controller if topology.controller >= 0 else None,
        partitions=partitions,
        under_replicated=topology.under_replicated,
        leaderless=topology.leaderless,
        written_bytes=spans.rate("moldau_written_bytes_total"),
        written_records=spans.rate("moldau_written_records_total"),
        read_bytes=spans.rate("moldau_read_bytes_total"),
        read_records=spans.rate("moldau_read_records_total"),
        produce_p50_seconds=spans.quantile(0.5, "moldau_kafka_request_seconds", **_PRODUCE),
        produce_p99_seconds=spans.quantile(_P99, "moldau_kafka_request_seconds", **_PRODUCE),
        commit_p50_seconds=spans.quantile(0.5, "moldau_produce_commit_seconds"),
        commit_p99_seconds=spans.quantile(_P99, "moldau_produce_commit_seconds"),
        lag_records=total(each.lag_records for each in groups),
        lag_seconds=max(_known(each.lag_seconds for each in groups), default=None),
        queue_ready=messages.get(("ready",)),
        queue_leased=messages.get(("leased",)),
        queue_delayed=messages.get(("delayed",)),
        queue_dead=messages.get(("dead",)),
        elections=spans.rate("moldau_elections_total"),
        election_causes={cause: count for (cause,), count in sorted(causes.items())},
        brokers=[_broker(broker, snapshot, spans) for broker in topology.brokers],
        topics=list(_topics(topology, spans)),
        groups=groups,
        queues=list(_queues(spans)),
        pipelines=list(_pipelines(spans)),
    )


def _broker(broker: "TopologyBroker", snapshot: Snapshot, spans: _Spans) -> BrokerFigures:
    answer = snapshot.answers[broker.id]
    own = _Spans([answer.span] if answer.span is not None else [])
    me = (str(broker.id),)
    skews = own.values("moldau_peer_clock_skew_seconds", "peer")
    started = own.value("process_start_time_seconds")
    return BrokerFigures(
        id=broker.id,
        state=_state(broker, answer),
        reason=answer.failure or "; ".join(answer.reasons),
        controller=broker.is_controller,
        version=next((name for (name,) in own.values("moldau_build_info", "version")), None),
        leaders=broker.leaders,
        replicas=broker.replicas,
        written_bytes=own.rate("moldau_written_bytes_total"),
        read_bytes=own.rate("moldau_read_bytes_total"),
        produce_p99_seconds=own.quantile(_P99, "moldau_kafka_request_seconds", **_PRODUCE),
        commit_p99_seconds=own.quantile(_P99, "moldau_produce_commit_seconds"),
        flush_p99_seconds=own.quantile(_P99, "moldau_log_flush_seconds"),
        loop_delay_p99_seconds=own.quantile(_P99, "moldau_loop_delay_seconds"),
        cpu_cores=own.rate("process_cpu_seconds_total"),
        memory_bytes=own.value("process_resident_memory_bytes"),
        disk_free_bytes=own.value("moldau_disk_free_bytes"),
        disk_total_bytes=own.value("moldau_disk_total_bytes"),
        connections=own.value("moldau_kafka_connections"),
        uptime_seconds=None if started is None else max(0.0, snapshot.at - started),
        elections=own.rate("moldau_elections_total"),
        elections_total=own.value("moldau_elections_total"),
        leaderships_total=own.value("moldau_leaderships_total"),
        epoch_changes=own.rate("moldau_raft_epoch_changes_total"),
        peers_connected=own.value("moldau_peer_connected"),
        peer_sent_bytes=own.rate("moldau_peer_sent_bytes_total"),
        peer_received_bytes=own.rate("moldau_peer_received_bytes_total"),
        behind_records=spans.values("moldau_replication_lag_records", "follower").get(me),
        behind_seconds=spans.largest("moldau_replication_lag_seconds", "follower").get(me),
        clock_skew_seconds=max(map(abs, skews.values()), default=None),
    )


def _state(broker: "TopologyBroker", answer: Answer) -> str:
    if not broker.alive:
        return "down"
    if answer.failure:
        return "rejects" if answer.refusal else "no response"
    if answer.reasons:
        return "not ready"
    return "draining" if broker.state == "draining" else "ok"


def _topics(topology: "Topology", spans: _Spans) -> Iterable[TopicFigures]:
    names = ("written_bytes", "written_records", "read_bytes", "read_records")
    rates = {name: spans.rates(f"moldau_topic_{name}_total", "topic") for name in names}
    sizes = spans.values("moldau_topic_log_bytes", "topic")
    for topic in topology.topics:
        key = (topic.name,)
        yield TopicFigures(
            topic=topic.name,
            internal=topic.internal,
            partitions=len(topic.partitions),
            replicas=max((len(part.replicas) for part in topic.partitions), default=0),
            leaderless=sum(part.leader < 0 for part in topic.partitions),
            under_replicated=sum(part.is_under_replicated for part in topic.partitions),
            size_bytes=sizes.get(key),
            **{name: rates[name].get(key) for name in names},
        )


def _groups(spans: _Spans) -> Iterable[GroupFigures]:
    # Not sums: a coordinator that has just moved may be there twice.
    records = spans.largest("moldau_group_lag", "group", "topic")
    seconds = spans.largest("moldau_group_lag_seconds", "group", "topic")
    unknown = spans.largest("moldau_group_lag_unknown_partitions", "group", "topic")
    for group, topic in sorted(records):
        yield GroupFigures(
            group=group,
            topic=topic,
            lag_records=records[group, topic],
            lag_seconds=seconds.get((group, topic)),
            partitions_unknown=unknown.get((group, topic), 0.0),
        )


def _queues(spans: _Spans) -> Iterable[QueueFigures]:
    labels = ("group", "topic")
    messages = spans.values("moldau_queue_messages", *labels, "state")
    deliveries = spans.rates("moldau_queue_deliveries_total", *labels)
    redeliveries = spans.rates("moldau_queue_redeliveries_total", *labels)
    acks = spans.rates("moldau_queue_settled_total", *labels, outcome="ack")
    dead = spans.values("moldau_queue_dead_letters_total", *labels)
    pairs = sorted({(group, topic) for group, topic, _ in messages})
    # Of rates, a quantile is the same as of counts.
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    for (group, bound), rate in spans.rates(
        "moldau_queue_settle_seconds_bucket", "group", "le"
    ).items():
        buckets[group][float(bound)] = rate
    for pair in pairs:
        group, topic = pair
        yield QueueFigures(
            group=group,
            topic=topic,
            ready=messages.get((*pair, "ready")),
            leased=messages.get((*pair, "leased")),
            delayed=messages.get((*pair, "delayed")),
            dead=messages.get((*pair, "dead")),
            deliveries=deliveries.get(pair),
            redeliveries=redeliveries.get(pair),
            acks=acks.get(pair),
            settle_p99_seconds=quantile(_P99, buckets[group]),
            dead_letters_total=dead.get(pair),
        )


def _pipelines(spans: _Spans) -> Iterable[PipelineFigures]:
    rows = spans.rates("moldau_pipeline_rows_total", "pipeline")
    batches = spans.rates("moldau_pipeline_batches_total", "pipeline")
    lag = spans.largest("moldau_pipeline_lag_records", "pipeline")
    dead = spans.largest("moldau_pipeline_dead_letters_total", "pipeline")
    age = spans.largest("moldau_pipeline_status_age_seconds", "pipeline")
    for name, kind, state in sorted(
        spans.values("moldau_pipeline_info", "pipeline", "kind", "state")
    ):
        yield PipelineFigures(
            pipeline=name,
            kind=kind,
            state=state,
            rows=rows.get((name,)),
            batches=batches.get((name,)),
            lag_records=lag.get((name,)),
            dead_letters_total=dead.get((name,)),
            age_seconds=age.get((name,)),
        )
