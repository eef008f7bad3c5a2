"""/metrics: the broker's metrics for Prometheus, collected when they are requested.

Names from clients become labels only up to a limit, so that a million groups overload neither the
broker nor Prometheus; what is left out is counted.
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
from moldau.api.local_replicas import LocalReplica
from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.api.types import ListedGroup
from moldau.edge.http.limits import ConnectionCounts
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.edge.http.process_metrics import process_families
from moldau.edge.http.responses import HEADERS
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId
from moldau.model.prometheus_text import MEDIA_TYPE, MetricFamily, counter, gauge, histogram, render

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 100
"""Partitions led here have their own series up to this number."""
GROUPS_MAX: Final = 500
GROUP_SERIES_MAX: Final = 2000
"""Pairs of group and topic."""

_ITEMS_PER_TURN: Final = 200
"""Other requests are served after this many partitions or groups."""


class HttpTraffic(NamedTuple):
    connections: ConnectionCounts
    middleware: LimitsMiddleware
    tails: int


def routes(sources: MetricSources, traffic: Callable[[], HttpTraffic]) -> list[Route]:
    # As with probes, unknown parameters are ignored.
    async def metrics(request: Request) -> Response:
        view = session_of(request).cluster.metrics()
        families = [*await collect(view, sources), *_http(traffic())]
        return Response(render(families), headers=HEADERS, media_type=MEDIA_TYPE)

    return [Route("/metrics", metrics, methods=["GET"])]


async def collect(view: MetricsView, sources: MetricSources) -> list[MetricFamily]:
    """All families, in a fixed order."""
    return [
        *[family async for family in _cluster(view)],
        *[family async for family in _hosted(view)],
        *_traffic(view, sources),
        *[family async for family in _groups(view)],
        *_transactions(view),
        *_storage(view, sources),
        *process_families(),
    ]


async def _cluster(view: MetricsView) -> AsyncIterator[MetricFamily]:
    """The whole cluster, as this broker knows it."""
    brokers, alive = view.brokers, view.alive
    partitions = leaderless = under_replicated = 0
    for topic in view.topics.values():
        for at in range(0, len(topic.partitions), _ITEMS_PER_TURN):
            some = topic.partitions[at : at + _ITEMS_PER_TURN]
            known = view.leaders_and_in_sync(topic, some)
            for partition, (leader, in_sync) in zip(some, known, strict=True):
                leaderless += leader.broker not in alive
                there = {*in_sync, *partition.adding}
                under_replicated += not there.issuperset(partition.replicas)
            partitions += len(some)
            if partitions % _ITEMS_PER_TURN < len(some):
                await asyncio.sleep(0)
    labels = {"version": moldau.__version__, "broker": str(view.broker_id)}
    build = gauge("moldau_build_info", "Always 1; version and broker id are labels.")
    build.add(1, labels)
    yield build
    yield gauge("moldau_ready", "1 if the broker is ready to serve clients.", int(view.is_ready))
    is_controller = view.controller_id == view.broker_id
    yield gauge("moldau_controller", "1 if this broker is the controller.", int(is_controller))
    yield gauge(
        "moldau_metadata_version", "Version of the metadata on this broker.", view.metadata_version
    )
    yield gauge("moldau_cluster_brokers", "Registered brokers.", len(brokers))
    count = len(alive & brokers.keys())
    yield gauge("moldau_cluster_brokers_alive", "Brokers alive, this one included.", count)
    yield gauge("moldau_cluster_topics", "Topics.", len(view.topics))
    yield gauge("moldau_cluster_partitions", "Partitions of all topics.", partitions)
    yield gauge("moldau_cluster_partitions_leaderless", "Partitions without a leader.", leaderless)
    name = "moldau_cluster_partitions_under_replicated"
    yield gauge(name, "Partitions with a replica that is not in sync.", under_replicated)


async def _hosted(view: MetricsView) -> AsyncIterator[MetricFamily]:
    """The replicas of this broker and their logs."""
    by_topic: dict[str, list[LocalReplica]] = defaultdict(list)
    led: list[LocalReplica] = []
    for replica in view.replicas:
        by_topic[replica.partition.topic].append(replica)
        if replica.is_leader:
            led.append(replica)
    yield gauge("moldau_partitions_hosted", "Replicas on this broker.", len(view.replicas))
    yield gauge("moldau_partitions_led", "Partitions that this broker leads.", len(led))
    offline = view.replicas.offline_count
    yield gauge("moldau_partitions_offline", "Offline replicas: corrupt, or disk full.", offline)
    left_out = max(0, len(by_topic) - TOPICS_MAX)
    yield gauge("moldau_topics_without_series", f"Topics left out, above {TOPICS_MAX}.", left_out)
    for family in await _topics(by_topic):
        yield family
    if len(led) <= PARTITIONS_MAX:
        for family in _partitions(led):
            yield family
    for family in await _replication(led):
        yield family


async def _topics(by_topic: Mapping[str, list[LocalReplica]]) -> list[MetricFamily]:
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
        for family, value in zip(moved, by_topic[name][0].topic_traffic.counts(), strict=True):
            family.add(value, {"topic": name})
        replicas = by_topic[name]
        leading = [replica for replica in replicas if replica.is_leader]
        labels = {"topic": name}
        size.add(sum(replica.size_bytes for replica in replicas), labels)
        count.add(len(leading), labels)
        marks.add(sum(replica.high_watermark for replica in leading), labels)
        starts.add(sum(replica.start_offset for replica in leading), labels)
        done += len(replicas)
        if done >= _ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return [size, count, marks, starts, *moved]


async def _replication(led: list[LocalReplica]) -> list[MetricFamily]:
    """The lag of each follower, over the partitions led here."""
    behind: Counter[BrokerId] = Counter()
    lagging: Counter[BrokerId] = Counter()
    short = 0
    for number, replica in enumerate(led):
        for follower, missing in replica.follower_lag().items():
            behind[follower] += missing
            lagging[follower] += missing > 0
        short += replica.is_under_min_insync()
        if number % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    lag = gauge("moldau_replication_lag_records", "Records that the follower has not flushed.")
    name = "moldau_replication_lagging_partitions"
    partitions = gauge(name, "Partitions led here of which the follower lags behind.")
    for follower in sorted(behind):
        lag.add(behind[follower], {"follower": str(follower)})
        partitions.add(lagging[follower], {"follower": str(follower)})
    help_text = "Partitions led here that reject acks=all: fewer in sync than min.insync.replicas."
    return [lag, partitions, gauge("moldau_partitions_under_min_insync", help_text, short)]


def _partitions(led: list[LocalReplica]) -> Iterator[MetricFamily]:
    """One series per partition, while there are few."""
    mark = gauge("moldau_partition_high_watermark", "The high watermark.")
    start = gauge("moldau_partition_log_start_offset", "The first available offset.")
    for replica in sorted(led, key=lambda replica: replica.partition):
        topic, partition = replica.partition
        labels = {"topic": topic, "partition": str(partition)}
        mark.add(replica.high_watermark, labels)
        start.add(replica.start_offset, labels)
    yield mark
    yield start


def _traffic(view: MetricsView, sources: MetricSources) -> Iterator[MetricFamily]:
    for (name, help_text), value in zip(
        (
            ("written_bytes", "Record batches that clients wrote here, over all topics."),
            ("written_records", "Records that clients wrote here, over all topics."),
            ("read_bytes", "Record batches that clients read here, over all topics."),
            ("read_records", "Records that clients read here, over all topics, by offsets."),
        ),
        view.total_traffic().counts(),
        strict=True,
    ):
        yield counter(f"moldau_{name}_total", help_text, value)
    requests = counter("moldau_kafka_requests_total", "Requests of Kafka clients, by API.")
    for api, count in sources.requests_by_api().items():
        requests.add(count, {"api": api})
    yield requests
    help_text = "From a Kafka request to its reply, by API; includes the wait time it allows."
    seconds = histogram("moldau_kafka_request_seconds", help_text)
    for api, durations in sources.seconds_by_api().items():
        # Most APIs are never used, and each takes twenty lines.
        if durations.sum:
            seconds.add_durations(durations, {"api": api})
    yield seconds
    listener = sources.listener
    yield gauge("moldau_kafka_inflight_bytes", "Kafka requests in memory.", listener.inflight_bytes)
    yield gauge("moldau_kafka_connections", "Open Kafka connections.", listener.connection_count)
    yield from _accepted("kafka", listener.accepted_total, listener.refused_total)
    name = "moldau_kafka_connections_failed_total"
    yield counter(name, "Connections closed for what the client did.", listener.failed_total)
    logins = counter("moldau_logins_total", "Logins of clients, by mechanism and result.")
    for (mechanism, result), count in sorted(sources.logins().items()):
        logins.add(count, {"mechanism": mechanism, "result": result})
    yield logins
    expiry = gauge("moldau_certificate_expiry_seconds", "Time until a certificate expires.")
    for file, expires_at in sorted(sources.certificates().items()):
        expiry.add(round(expires_at - view.clock.wall_ms() / 1000), {"file": file})
    yield expiry
    throttled = counter("moldau_throttled_requests_total", "Requests over a quota, by its name.")
    waits = counter("moldau_throttled_seconds_total", "Waits that clients were told, by quota.")
    for key, count in sources.quotas.throttled.items():
        throttled.add(count, {"quota": key})
        waits.add(sources.quotas.throttled_seconds[key], {"quota": key})
    yield throttled
    yield waits
    parked = view.fetches_parked
    yield gauge("moldau_kafka_fetches_parked", "Fetches that wait for data.", parked)


def _accepted(protocol: str, accepted: int, refused: int) -> Iterator[MetricFamily]:
    name = f"moldau_{protocol}_connections"
    yield counter(f"{name}_accepted_total", "Accepted connections since the start.", accepted)
    yield counter(f"{name}_refused_total", "Connections rejected by a limit.", refused)


def _http(traffic: HttpTraffic) -> Iterator[MetricFamily]:
    connections, middleware, tails = traffic
    requests = counter("moldau_http_requests_total", "Requests over HTTP, by method and status.")
    for (method, status), count in sorted(middleware.requests.items()):
        requests.add(count, {"method": method, "status": str(status)})
    yield requests
    seconds = histogram("moldau_http_request_seconds", "From request to reply; without streams.")
    seconds.add_durations(middleware.seconds)
    yield seconds
    yield gauge("moldau_http_connections", "Open HTTP connections.", connections.open)
    yield from _accepted("http", connections.accepted_total, connections.refused_total)
    yield gauge("moldau_http_tails", "Open tail streams.", tails)
    held = middleware.buffered_bytes
    yield gauge("moldau_http_held_bytes", "Bodies and large replies in memory.", held)
    name = "moldau_http_requests_without_room_total"
    yield counter(name, "Requests rejected by the limit of held bytes.", middleware.refused_total)


async def _groups(view: MetricsView) -> AsyncIterator[MetricFamily]:
    """Groups that this broker coordinates; nothing while it loads one of their partitions."""
    error, listed = view.list_groups()
    if error is not ErrorCode.NONE:
        return
    groups = gauge("moldau_groups", "Groups coordinated here, by type and state.")
    counts = Counter((str(group.group_type), str(group.state)) for group in listed)
    for (kind, state), number in sorted(counts.items()):
        groups.add(number, {"type": kind, "state": state})
    yield groups
    listed.sort(key=lambda group: group.group_id)
    lags, unknown, left_out = await _lags(view, listed)
    yield lags
    yield unknown
    yield gauge("moldau_groups_without_series", "Groups whose lag is left out.", left_out)


async def _lags(
    view: MetricsView, listed: list[ListedGroup]
) -> tuple[MetricFamily, MetricFamily, int]:
    lags = gauge("moldau_group_lag", "Unprocessed records, in partitions with a replica here.")
    name = "moldau_group_lag_unknown_partitions"
    unknown = gauge(name, "Partitions with a committed offset, but no replica here.")
    done = 0
    for number, group in enumerate(listed):
        if number >= GROUPS_MAX or len(lags.samples) >= GROUP_SERIES_MAX:
            return lags, unknown, len(listed) - number
        offsets = view.known_offsets(group.group_id).offsets
        lag: Counter[str] = Counter()
        missing: Counter[str] = Counter()
        for (topic, partition), stored in offsets.items():
            replica = view.replicas.get(topic, partition)
            # 0 is added, so that a group without lag has a series, too.
            behind = 0 if replica is None else replica.high_watermark - stored.offset
            lag[topic] += max(0, behind)
            missing[topic] += replica is None
        for topic in islice(sorted(lag), GROUP_SERIES_MAX - len(lags.samples)):
            labels = {"group": group.group_id, "topic": topic}
            lags.add(lag[topic], labels)
            unknown.add(missing[topic], labels)
        done += 1 + len(offsets)
        if done >= _ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return lags, unknown, 0


def _transactions(view: MetricsView) -> Iterator[MetricFamily]:
    error, listed = view.list_transactions()
    if error is ErrorCode.NONE:
        family = gauge("moldau_transactional_ids", "Transactional ids coordinated here, by state.")
        for state, number in sorted(Counter(one.state for one in listed).items()):
            family.add(number, {"state": state})
        yield family


def _storage(view: MetricsView, sources: MetricSources) -> Iterator[MetricFamily]:
    yield counter(
        "moldau_leaderships_total", "Leaderships taken by this broker.", sources.leaderships()
    )
    turns, seconds, starved = sources.slow_turns()
    yield counter("moldau_loop_slow_turns_total", "Turns of the event loop above 0.1 s.", turns)
    yield counter("moldau_loop_slow_seconds_total", "Time of these turns.", seconds)
    yield counter("moldau_loop_starved_seconds_total", "Of it, time without CPU.", starved)
    scrub = sources.scrub()
    if scrub is not None:
        yield counter("moldau_log_scrubbed_bytes_total", "Verified bytes.", scrub.bytes)
        yield counter("moldau_log_scrub_damaged_total", "Partitions found corrupt.", scrub.corrupt)
    flusher = sources.flusher
    yield counter("moldau_log_flushes_total", "Flushes of logs to disk.", flusher.flushes_total)
    small = flusher.small_flush_seconds
    yield gauge("moldau_log_flush_small_seconds", "Moving average of small flushes.", small)
    yield gauge("moldau_disk_free_bytes", "Free space of the data disk.", view.disk_free_bytes())
    yield gauge("moldau_disk_total_bytes", "Size of the data disk.", view.disk_total_bytes())
    cleaner = sources.cleaner()
    if cleaner is None:
        return
    yield gauge("moldau_compaction_due_partitions", "Logs due for compaction.", cleaner.due())
    for name, help_text, value in (
        ("runs", "Compactions.", cleaner.cleanings),
        ("failures", "Failed compactions.", cleaner.failures),
        ("read_bytes", "Bytes read by compactions.", cleaner.bytes_read),
        ("written_bytes", "Bytes written by compactions.", cleaner.bytes_written),
        ("read_records", "Records read by compactions.", cleaner.records_read),
        ("dropped_records", "Records dropped by compactions.", cleaner.records_dropped),
        ("seconds", "Duration of compactions.", cleaner.seconds),
    ):
        yield counter(f"moldau_compaction_{name}_total", help_text, value)
