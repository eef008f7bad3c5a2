"""Owns /metrics: what a broker tells Prometheus, put together when it is asked and not before.

Names from clients become labels only up to a bound, so that a million groups make neither the
answer nor the memory of who collects it endless; what is left out is counted.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import moldau
from moldau.api.broker import Broker
from moldau.api.metric_sources import MetricSources
from moldau.data.partitions import HostedPartition
from moldau.data.traffic import Traffic
from moldau.edge.http.listener import ConnectionCounts
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.edge.http.process_metrics import process_families
from moldau.edge.http.responses import HEADERS
from moldau.groups.results import ListedGroup
from moldau.model.errors import ErrorCode
from moldau.model.prometheus_text import MEDIA_TYPE, MetricFamily, counter, gauge, histogram, render
from moldau.replica.replica import LAG_MS_MAX

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 100
"""Up to so many partitions led here have numbers of their own."""
GROUPS_MAX: Final = 500
GROUP_SERIES_MAX: Final = 2000
"""Pairs of a group and a topic."""

_ITEMS_PER_TURN: Final = 200
"""Clients get their turn after so many partitions or groups."""


class HttpTraffic(NamedTuple):
    """What the HTTP door counts about itself."""

    connections: ConnectionCounts
    gate: LimitsMiddleware
    tails: int


def routes(
    broker: Broker, vitals: MetricSources, traffic: Callable[[], HttpTraffic]
) -> list[Route]:
    # As with probes: whoever collects may append parameters of its own.
    async def metrics(request: Request) -> Response:
        families = [family async for family in collect(broker, vitals)]
        families += _http(traffic())
        return Response(render(families), headers=HEADERS, media_type=MEDIA_TYPE)

    return [Route("/metrics", metrics, methods=["GET"])]


async def collect(broker: Broker, vitals: MetricSources) -> AsyncIterator[MetricFamily]:
    """All of it, in an order that does not change."""
    async for family in _cluster(broker):
        yield family
    async for family in _hosted(broker):
        yield family
    for family in _traffic(broker, vitals):
        yield family
    async for family in _groups(broker):
        yield family
    for family in _transactions(broker):
        yield family
    for family in _storage(broker, vitals):
        yield family
    for family in process_families():
        yield family


async def _cluster(broker: Broker) -> AsyncIterator[MetricFamily]:
    """The whole cluster, as this broker sees it."""
    image, alive = broker.image, broker.cluster.alive
    partitions = leaderless = under_replicated = 0
    for topic in image.topics.values():
        for at in range(0, len(topic.partitions), _ITEMS_PER_TURN):
            some = topic.partitions[at : at + _ITEMS_PER_TURN]
            places = broker.cluster.places(topic, some)
            for partition, (leader, in_sync) in zip(some, places, strict=True):
                leaderless += leader.broker not in alive
                there = {*in_sync, *partition.adding}
                under_replicated += not there.issuperset(partition.replicas)
            partitions += len(some)
            if partitions % _ITEMS_PER_TURN < len(some):
                await asyncio.sleep(0)
    labels = {"version": moldau.__version__, "broker": str(broker.broker_id)}
    build = gauge("moldau_build_info", "Always 1; the labels say what runs here.")
    build.add(1, labels)
    yield build
    ready = not broker.cluster.health()
    yield gauge("moldau_ready", "1: clients are served.", int(ready))
    is_controller = broker.cluster.controller_id == broker.broker_id
    yield gauge("moldau_controller", "1: this broker leads the metadata.", int(is_controller))
    yield gauge("moldau_metadata_version", "Changes of the metadata known here.", image.version)
    yield gauge("moldau_cluster_brokers", "Brokers that are registered.", len(image.brokers))
    count = len(alive & image.brokers.keys())
    yield gauge("moldau_cluster_brokers_alive", "Brokers heard of lately, this one too.", count)
    yield gauge("moldau_cluster_topics", "Topics.", len(image.topics))
    yield gauge("moldau_cluster_partitions", "Partitions of all topics.", partitions)
    yield gauge(
        "moldau_cluster_partitions_leaderless", "Partitions that nobody serves now.", leaderless
    )
    yield gauge(
        "moldau_cluster_partitions_under_replicated",
        "Partitions with a replica that is not in sync.",
        under_replicated,
    )


async def _hosted(broker: Broker) -> AsyncIterator[MetricFamily]:
    """The replicas of this broker, and the logs they keep."""
    by_topic: dict[str, list[HostedPartition]] = defaultdict(list)
    led: list[HostedPartition] = []
    for hosted in broker.partitions:
        by_topic[hosted.replica.partition.topic].append(hosted)
        if hosted.replica.is_leader:
            led.append(hosted)
    yield gauge("moldau_partitions_hosted", "Replicas on this broker.", len(broker.partitions))
    yield gauge("moldau_partitions_led", "Partitions that this broker leads.", len(led))
    yield gauge(
        "moldau_partitions_offline",
        "Replicas of this broker that are damaged or lack room.",
        len(broker.partitions.offline),
    )
    yield gauge(
        "moldau_topics_without_series",
        f"Topics hosted here beyond the {TOPICS_MAX} that are told one by one.",
        max(0, len(by_topic) - TOPICS_MAX),
    )
    for family in await _topics(broker, by_topic):
        yield family
    if len(led) <= PARTITIONS_MAX:
        for family in _partitions(led):
            yield family
    for family in await _replication(led):
        yield family


async def _topics(
    broker: Broker, by_topic: Mapping[str, list[HostedPartition]]
) -> list[MetricFamily]:
    size = gauge("moldau_topic_log_bytes", "Size of the topic's logs on this broker.")
    count = gauge("moldau_topic_partitions_led", "Partitions of the topic led here.")
    marks = gauge("moldau_topic_high_watermark_sum", "Sum over the partitions led here.")
    starts = gauge("moldau_topic_log_start_offset_sum", "Sum over the partitions led here.")
    moved = [
        counter("moldau_topic_written_bytes_total", "Record batches that clients wrote here."),
        counter("moldau_topic_written_records_total", "Records that clients wrote here."),
        counter("moldau_topic_read_bytes_total", "Record batches that clients read here."),
        counter("moldau_topic_read_records_total", "Records that clients read here, by offsets."),
    ]
    done = 0
    for name in islice(sorted(by_topic), TOPICS_MAX):
        for family, value in zip(moved, _moved(by_topic[name][0].traffic), strict=True):
            family.add(value, {"topic": name})
        replicas = [hosted.replica for hosted in by_topic[name]]
        leading = [replica for replica in replicas if replica.is_leader]
        labels = {"topic": name}
        size.add(sum(replica.log.size_bytes for replica in replicas), labels)
        count.add(len(leading), labels)
        marks.add(sum(replica.high_watermark for replica in leading), labels)
        starts.add(sum(replica.log.start_offset for replica in leading), labels)
        done += len(replicas)
        if done >= _ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return [size, count, marks, starts, *moved]


async def _replication(led: list[HostedPartition]) -> list[MetricFamily]:
    """How far the followers of partitions led here are behind, by follower."""
    behind: Counter[int] = Counter()
    lagging: Counter[int] = Counter()
    short = 0
    for number, hosted in enumerate(led):
        core = hosted.replica.group.core
        for peer, progress in core.progress.items():
            missing = max(0, core.end - progress.match)
            behind[peer] += missing
            lagging[peer] += missing > 0
        wanted = hosted.config.insync_replicas_min
        short += wanted > 1 and len(hosted.replica.in_sync(LAG_MS_MAX)) < wanted
        if number % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    lag = gauge(
        "moldau_replication_lag_records",
        "Records that a follower has not flushed yet, over the partitions led here.",
    )
    partitions = gauge(
        "moldau_replication_lagging_partitions",
        "Partitions led here of which a follower has not flushed everything.",
    )
    for follower in sorted(behind):
        lag.add(behind[follower], {"follower": str(follower)})
        partitions.add(lagging[follower], {"follower": str(follower)})
    return [
        lag,
        partitions,
        gauge(
            "moldau_partitions_under_min_insync",
            "Partitions led here that refuse acks=all: fewer are in sync than min.insync.replicas.",
            short,
        ),
    ]


def _partitions(led: list[HostedPartition]) -> Iterator[MetricFamily]:
    """One by one, as long as they are few."""
    mark = gauge("moldau_partition_high_watermark", "The offset after the last that is committed.")
    start = gauge("moldau_partition_log_start_offset", "The first offset that is there.")
    for hosted in sorted(led, key=lambda hosted: hosted.replica.partition):
        replica = hosted.replica
        topic, partition = replica.partition
        labels = {"topic": topic, "partition": str(partition)}
        mark.add(replica.high_watermark, labels)
        start.add(replica.log.start_offset, labels)
    yield mark
    yield start


def _moved(traffic: Traffic) -> tuple[int, int, int, int]:
    return (
        traffic.written_bytes,
        traffic.written_records,
        traffic.read_bytes,
        traffic.read_records,
    )


def _traffic(broker: Broker, vitals: MetricSources) -> Iterator[MetricFamily]:
    broker.partitions.traffic.forget_all_but(broker.image.topics)
    for (name, help_text), value in zip(
        (
            ("written_bytes", "Record batches that clients wrote here, over all topics."),
            ("written_records", "Records that clients wrote here, over all topics."),
            ("read_bytes", "Record batches that clients read here, over all topics."),
            ("read_records", "Records that clients read here, over all topics, by offsets."),
        ),
        _moved(broker.partitions.traffic.total()),
        strict=True,
    ):
        yield counter(f"moldau_{name}_total", help_text, value)
    requests = counter("moldau_kafka_requests_total", "Requests of Kafka clients, by API.")
    for api, count in vitals.requests_by_api().items():
        requests.add(count, {"api": api})
    yield requests
    seconds = histogram(
        "moldau_kafka_request_seconds",
        "From a request of a Kafka client to its reply, by API; with the wait that it asked for.",
    )
    for api, durations in vitals.seconds_by_api().items():
        # Most APIs are never asked, and each takes twenty lines.
        if durations.sum:
            seconds.add_durations(durations, {"api": api})
    yield seconds
    listener = vitals.listener
    yield gauge(
        "moldau_kafka_inflight_bytes",
        "Requests of Kafka clients being received or answered.",
        listener.inflight_bytes,
    )
    yield gauge("moldau_kafka_connections", "Open Kafka connections.", listener.connection_count)
    yield counter(
        "moldau_kafka_connections_accepted_total", "Kafka connections.", listener.accepted_total
    )
    yield counter(
        "moldau_kafka_connections_refused_total",
        "Kafka connections above a limit.",
        listener.refused_total,
    )
    yield gauge(
        "moldau_kafka_fetches_parked", "Fetches that wait for data.", broker.fetch.parked_count
    )


def _http(traffic: HttpTraffic) -> Iterator[MetricFamily]:
    connections, gate, tails = traffic
    requests = counter("moldau_http_requests_total", "Requests over HTTP, by method and status.")
    for (method, status), count in sorted(gate.requests.items()):
        requests.add(count, {"method": method, "status": str(status)})
    yield requests
    seconds = histogram(
        "moldau_http_request_seconds", "Until the reply was sent; without those that stream."
    )
    seconds.add_durations(gate.seconds)
    yield seconds
    yield gauge("moldau_http_connections", "Open HTTP connections.", connections.open)
    yield counter(
        "moldau_http_connections_accepted_total", "HTTP connections.", connections.accepted_total
    )
    yield counter(
        "moldau_http_connections_refused_total",
        "HTTP connections above the limit.",
        connections.refused_total,
    )
    yield gauge("moldau_http_tails", "Clients that follow a partition.", tails)
    yield gauge("moldau_http_held_bytes", "Bodies and large replies on their way.", gate.held_bytes)
    yield counter(
        "moldau_http_requests_without_room_total",
        "Requests refused because too many bytes were on their way.",
        gate.refused_total,
    )


async def _groups(broker: Broker) -> AsyncIterator[MetricFamily]:
    """Groups whose coordinator is here. Nothing is told while one of its partitions loads."""
    error, listed = broker.groups.list_groups((), ())
    if error is not ErrorCode.NONE:
        return
    groups = gauge("moldau_groups", "Groups coordinated here, by type and state.")
    counts = Counter((str(group.group_type), str(group.state)) for group in listed)
    for (kind, state), number in sorted(counts.items()):
        groups.add(number, {"type": kind, "state": state})
    yield groups
    listed.sort(key=lambda group: group.group_id)
    lags, unknown, left_out = await _lags(broker, listed)
    yield lags
    yield unknown
    yield gauge(
        "moldau_groups_without_series",
        "Groups coordinated here whose lag is left out because there are so many.",
        left_out,
    )


async def _lags(
    broker: Broker, listed: list[ListedGroup]
) -> tuple[MetricFamily, MetricFamily, int]:
    lags = gauge(
        "moldau_group_lag",
        "Records committed but not yet processed by the group, over partitions hosted here.",
    )
    unknown = gauge(
        "moldau_group_lag_unknown_partitions",
        "Partitions with a position of the group that have no replica here.",
    )
    done = 0
    for number, group in enumerate(listed):
        if number >= GROUPS_MAX or len(lags.samples) >= GROUP_SERIES_MAX:
            return lags, unknown, len(listed) - number
        offsets = broker.groups.known_offsets(group.group_id).offsets
        lag: Counter[str] = Counter()
        missing: Counter[str] = Counter()
        for (topic, partition), stored in offsets.items():
            hosted = broker.partitions.get(topic, partition)
            # Mentioned with nothing, so that a group without lag has a series too.
            behind = 0 if hosted is None else hosted.replica.high_watermark - stored.offset
            lag[topic] += max(0, behind)
            missing[topic] += hosted is None
        for topic in islice(sorted(lag), GROUP_SERIES_MAX - len(lags.samples)):
            labels = {"group": group.group_id, "topic": topic}
            lags.add(lag[topic], labels)
            unknown.add(missing[topic], labels)
        done += 1 + len(offsets)
        if done >= _ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return lags, unknown, 0


def _transactions(broker: Broker) -> Iterator[MetricFamily]:
    error, listed = broker.transactions.list_transactions((), (), -1)
    if error is ErrorCode.NONE:
        family = gauge("moldau_transactional_ids", "Transactional ids coordinated here, by state.")
        for state, number in sorted(Counter(one.state for one in listed).items()):
            family.add(number, {"state": state})
        yield family


def _storage(broker: Broker, vitals: MetricSources) -> Iterator[MetricFamily]:
    yield counter(
        "moldau_leaderships_total",
        "How often a partition got its leader on this broker.",
        vitals.leaderships(),
    )
    slow = vitals.slow_turns()
    yield counter(
        "moldau_loop_slow_turns_total",
        "Times that all clients waited for 0.1 s.",
        slow.turns,
    )
    yield counter(
        "moldau_loop_slow_seconds_total", "How long all clients waited then.", slow.seconds
    )
    yield counter(
        "moldau_loop_starved_seconds_total",
        "How long of it the process got no CPU.",
        slow.starved_seconds,
    )
    scrub = vitals.scrub()
    if scrub is not None:
        yield counter(
            "moldau_log_scrubbed_bytes_total",
            "Stored bytes that were read again.",
            scrub.bytes,
        )
        yield counter(
            "moldau_log_scrub_damaged_total", "Partitions found damaged by that.", scrub.damaged
        )
    flusher = vitals.flusher
    yield counter("moldau_log_flushes_total", "Flushes of logs to disk.", flusher.flushes_total)
    yield gauge(
        "moldau_log_flush_small_seconds",
        "Duration of a small flush lately, smoothed.",
        flusher.small_flush_seconds,
    )
    yield gauge("moldau_disk_free_bytes", "Room on the data directory.", broker.disk_free_bytes())
    yield gauge("moldau_disk_total_bytes", "Its size.", broker.disk_total_bytes())
    cleaner = vitals.cleaner()
    if cleaner is None:
        return
    yield gauge(
        "moldau_compaction_due_partitions",
        "Compacted logs that are dirty enough to be cleaned.",
        cleaner.due(),
    )
    for name, help_text, value in (
        ("runs", "Cleanings of compacted logs.", cleaner.cleanings),
        ("failures", "Cleanings that failed.", cleaner.failures),
        ("read_bytes", "Bytes that cleanings read.", cleaner.bytes_read),
        ("written_bytes", "Bytes that cleanings wrote.", cleaner.bytes_written),
        ("read_records", "Records that cleanings read.", cleaner.records_read),
        ("dropped_records", "Records that cleanings dropped.", cleaner.records_dropped),
        ("seconds", "Time that cleanings took.", cleaner.seconds),
    ):
        yield counter(f"moldau_compaction_{name}_total", help_text, value)
