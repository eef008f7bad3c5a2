"""Makes the overview from the samples of all brokers and the scan of all partitions."""

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from moldau.api.overview.group_lags import LAGGING_MAX
from moldau.api.overview.sample import BrokerSample, Span, added, quantile_ms
from moldau.control.cluster_events import ClusterEvent
from moldau.control.cluster_scan import Scan
from moldau.metadata.image import Broker, BrokerState
from moldau.model.cluster_problems import (
    Problem,
    not_ready,
    of_its_disk,
    of_offline_replicas,
    problems,
    sentence,
)
from moldau.model.ids import BrokerId
from moldau.model.overview import (
    BrokerLive,
    Counts,
    HappenedEvent,
    Health,
    History,
    Lag,
    LaggingGroup,
    Latency,
    Leaderless,
    Overview,
    OverviewProblem,
    Rates,
    UnderReplicated,
)
from moldau.model.topology import Endpoint

POINTS_MAX: Final = 450
_P50: Final = 0.5
_P99: Final = 0.99
_SOME_TOPIC: Final = "TOPIC"


class View(NamedTuple):
    """What this broker knows at one time."""

    at_ms: int
    cluster_id: str
    me: BrokerId
    brokers: Mapping[BrokerId, Broker]
    alive: frozenset[BrokerId]
    scan: Scan
    old: Mapping[BrokerId, BrokerSample]
    """The samples before these."""
    new: Mapping[BrokerId, BrokerSample]
    """Without brokers that did not respond."""


def overview_of(view: View) -> Overview:
    """Without events and history."""
    spans = {
        broker: span
        for broker, sample in view.new.items()
        if (span := Span.of(view.old.get(broker), sample)) is not None
    }
    condition = view.scan.condition
    return Overview(
        at_ms=view.at_ms,
        cluster_id=view.cluster_id,
        answered_by=view.me,
        controller=condition.controller,
        metadata_version=view.scan.version,
        health=_health(view),
        brokers=[_broker(view, broker, spans.get(each)) for each, broker in _sorted(view.brokers)],
        counts=Counts(
            topics=condition.topics,
            partitions=condition.partitions,
            leaderless=condition.leaderless,
            under_replicated=condition.under_replicated,
            groups=_total(sample.groups for sample in view.new.values()),
        ),
        leaderless=[
            Leaderless(topic=each.topic, partition=each.partition) for each in view.scan.leaderless
        ],
        under_replicated=[
            UnderReplicated(topic=each.topic, partition=each.partition, missing=each.missing)
            for each in view.scan.under_replicated
        ],
        rates=_rates(spans.values()),
        latency=_latency(spans.values()),
        lag=_lag(view.new.values()),
        events=[],
        history=None,
    )


def _sorted(brokers: Mapping[BrokerId, Broker]) -> list[tuple[BrokerId, Broker]]:
    return sorted(brokers.items(), key=lambda item: item[0])


def _health(view: View) -> Health:
    condition = view.scan.condition
    found = problems(condition)
    for number, _ in _sorted(view.brokers):
        sample = view.new.get(number)
        if sample is not None:
            found += not_ready(number, sample.reasons)
            found += of_its_disk(number, sample.disk_free_bytes, sample.disk_total_bytes)
            found += of_offline_replicas(number, sample.offline)
        elif number in view.alive:
            text = f"broker {number} did not respond in time"
            remedy = f"check it: moldau broker status {number}"
            found.append(Problem(text, remedy, number))
    state: Literal["healthy", "degraded", "failing"] = "healthy"
    if condition.controller < 0 or condition.leaderless:
        state = "failing"
    elif found:
        state = "degraded"
    return Health(
        state=state,
        sentence=sentence(found, len(view.brokers), condition.partitions),
        problems=[
            OverviewProblem(
                text=each.text, remedy=each.remedy, broker=each.broker, topic=each.topic
            )
            for each in found
        ],
    )


def _broker(view: View, broker: Broker, span: Span | None) -> BrokerLive:
    shown = BrokerLive(
        id=broker.id,
        rack=broker.rack,
        machine=broker.machine,
        state="draining" if broker.state is BrokerState.DRAINING else "active",
        alive=broker.id in view.alive,
        is_controller=broker.id == view.scan.condition.controller,
        http=broker.http,
        kafka=Endpoint(broker.host, broker.port),
        grpc=broker.grpc,
        silent=broker.id not in view.new,
    )
    sample = view.new.get(broker.id)
    if sample is None:
        return shown
    shown = replace(
        shown,
        version=sample.version,
        started_at_ms=sample.started_at_ms,
        resident_bytes=sample.resident_bytes,
        disk_free_bytes=sample.disk_free_bytes,
        disk_total_bytes=sample.disk_total_bytes,
        leaders=sample.leaders,
        replicas=sample.replicas,
        connections=sample.connections,
        log_bytes=sample.log_bytes,
    )
    if span is None:
        return shown
    return replace(
        shown,
        cpu=round(span.rate("cpu_seconds"), 4),
        bytes_in=_rounded(span.rate("bytes_in")),
        bytes_out=_rounded(span.rate("bytes_out")),
        records_in=_rounded(span.rate("records_in")),
        loop_delay_ms=quantile_ms(_P99, span.buckets("loop_delay")),
        flush_ms=quantile_ms(_P99, span.buckets("flush")),
    )


def _rates(spans: Iterable[Span]) -> Rates:
    known = list(spans)
    if not known:
        return Rates()

    def of(name: str) -> float:
        return _rounded(sum(span.rate(name) for span in known))

    return Rates(
        bytes_in=of("bytes_in"),
        bytes_out=of("bytes_out"),
        records_in=of("records_in"),
        requests=of("requests"),
    )


def _latency(spans: Iterable[Span]) -> Latency:
    known = list(spans)
    produce, commit, flush = (
        added(span.buckets(name) for span in known) for name in ("produce", "commit", "flush")
    )
    return Latency(
        produce_p50_ms=quantile_ms(_P50, produce),
        produce_p99_ms=quantile_ms(_P99, produce),
        commit_p50_ms=quantile_ms(_P50, commit),
        commit_p99_ms=quantile_ms(_P99, commit),
        flush_p99_ms=quantile_ms(_P99, flush),
    )


def _lag(samples: Iterable[BrokerSample]) -> Lag:
    known = list(samples)
    lagging = (group for sample in known for group in sample.lagging)
    return Lag(
        records=_total(sample.lag_records for sample in known),
        groups=[
            LaggingGroup(group=each.group, lag=each.records, lag_seconds=each.seconds)
            for each in nlargest(LAGGING_MAX, lagging, key=lambda one: one.records)
        ],
    )


def _total(values: Iterable[int | None]) -> int | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rounded(value: float) -> float:
    return round(value, 1)


# ---- events and history


def shown_events(events: Iterable[ClusterEvent]) -> list[HappenedEvent]:
    return [
        HappenedEvent(
            id=each.id,
            at_ms=each.at_ms,
            kind=each.kind,
            text=each.text,
            broker=each.broker,
            topic=each.topic,
        )
        for each in events
    ]


class _Point(NamedTuple):
    at_ms: int
    rates: Rates
    latency: Latency
    lag: int | None


class Points:
    """The figures of the last overviews, for charts."""

    def __init__(self) -> None:
        self._kept: deque[_Point] = deque(maxlen=POINTS_MAX)

    def add(self, overview: Overview) -> None:
        point = _Point(overview.at_ms, overview.rates, overview.latency, overview.lag.records)
        self._kept.append(point)

    def history(self) -> History:
        kept = self._kept
        return History(
            at_ms=[each.at_ms for each in kept],
            bytes_in=[each.rates.bytes_in for each in kept],
            bytes_out=[each.rates.bytes_out for each in kept],
            records_in=[each.rates.records_in for each in kept],
            produce_p99_ms=[each.latency.produce_p99_ms for each in kept],
            commit_p99_ms=[each.latency.commit_p99_ms for each in kept],
            lag=[each.lag for each in kept],
        )


# ---- rights


def topics_named(overview: Overview) -> set[str]:
    return {
        *(each.topic for each in overview.leaderless),
        *(each.topic for each in overview.under_replicated),
        *(each.topic for each in overview.events if each.topic is not None),
        *(each.topic for each in overview.health.problems if each.topic is not None),
    }


def without_topics(overview: Overview, hidden: frozenset[str]) -> Overview:
    """For a client that may not know these names; counts stay."""
    if not hidden:
        return overview
    return replace(
        overview,
        leaderless=[each for each in overview.leaderless if each.topic not in hidden],
        under_replicated=[each for each in overview.under_replicated if each.topic not in hidden],
        events=[each for each in overview.events if each.topic not in hidden],
        health=replace(
            overview.health,
            problems=[
                each if each.topic not in hidden else _without_name(each)
                for each in overview.health.problems
            ],
        ),
    )


def _without_name(problem: OverviewProblem) -> OverviewProblem:
    name = problem.topic or ""
    return replace(problem, remedy=problem.remedy.replace(name, _SOME_TOPIC), topic=None)
