"""Metrics of the cluster, and of the partitions and topics of this broker."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import islice

import moldau
from moldau.api.local_replicas import LocalReplica
from moldau.api.metrics_view import MetricsView
from moldau.edge.http.metrics import limits
from moldau.edge.http.metrics.table import family
from moldau.model.prometheus_text import MetricFamily


async def cluster_families(view: MetricsView) -> AsyncIterator[MetricFamily]:
    """The whole cluster, as this broker knows it."""
    brokers, alive = view.brokers, view.alive
    partitions = leaderless = under_replicated = 0
    per_turn = limits.ITEMS_PER_TURN
    for topic in view.topics.values():
        for at in range(0, len(topic.partitions), per_turn):
            some = topic.partitions[at : at + per_turn]
            known = view.leaders_and_in_sync(topic, some)
            for partition, (leader, in_sync) in zip(some, known, strict=True):
                leaderless += leader.broker not in alive
                # As the topology: a leader reports a dead broker as in sync for some seconds more,
                # and one that is dead itself forever.
                there = alive.intersection(in_sync).union(partition.adding)
                under_replicated += not there.issuperset(partition.replicas)
            partitions += len(some)
            if partitions % per_turn < len(some):
                await asyncio.sleep(0)
    build = family("moldau_build_info")
    build.add(1, {"version": moldau.__version__, "broker": str(view.broker_id)})
    yield build
    yield family("moldau_ready", int(view.is_ready))
    yield family("moldau_controller", int(view.controller_id == view.broker_id))
    yield family("moldau_controller_known", int(view.is_controller_known))
    yield family("moldau_metadata_version", view.metadata_version)
    yield family("moldau_cluster_brokers", len(brokers))
    yield family("moldau_cluster_brokers_alive", len(alive & brokers.keys()))
    yield family("moldau_cluster_topics", len(view.topics))
    yield family("moldau_cluster_partitions", partitions)
    yield family("moldau_cluster_partitions_leaderless", leaderless)
    yield family("moldau_cluster_partitions_under_replicated", under_replicated)


async def partition_families(view: MetricsView, *, has_detail: bool) -> AsyncIterator[MetricFamily]:
    """The replicas of this broker and their logs."""
    by_topic: dict[str, list[LocalReplica]] = defaultdict(list)
    led: list[LocalReplica] = []
    for replica in view.replicas:
        by_topic[replica.partition.topic].append(replica)
        if replica.is_leader:
            led.append(replica)
    yield family("moldau_partitions_hosted", len(view.replicas))
    yield family("moldau_partitions_led", len(led))
    yield family("moldau_partitions_offline", view.replicas.offline_count)
    left_out = max(0, len(by_topic) - limits.TOPICS_MAX)
    yield family("moldau_topics_without_series", left_out)
    for one in await _topics(by_topic):
        yield one
    for name, value in zip(
        ("written_bytes", "written_records", "read_bytes", "read_records"),
        view.total_traffic().counts(),
        strict=True,
    ):
        yield family(f"moldau_{name}_total", value)
    if has_detail or len(led) <= limits.PARTITIONS_MAX:
        led.sort(key=lambda replica: replica.partition)
        async for one in _partitions(led[: limits.DETAIL_PARTITIONS_MAX], has_detail=has_detail):
            yield one


async def _topics(by_topic: Mapping[str, list[LocalReplica]]) -> list[MetricFamily]:
    size = family("moldau_topic_log_bytes")
    count = family("moldau_topic_partitions_led")
    marks = family("moldau_topic_high_watermark_sum")
    starts = family("moldau_topic_log_start_offset_sum")
    moved = [
        family("moldau_topic_written_bytes_total"),
        family("moldau_topic_written_records_total"),
        family("moldau_topic_read_bytes_total"),
        family("moldau_topic_read_records_total"),
    ]
    done = 0
    for name in islice(sorted(by_topic), limits.TOPICS_MAX):
        replicas, labels = by_topic[name], {"topic": name}
        for one, value in zip(moved, replicas[0].topic_traffic.counts(), strict=True):
            one.add(value, labels)
        leading = [replica for replica in replicas if replica.is_leader]
        size.add(sum(replica.size_bytes for replica in replicas), labels)
        count.add(len(leading), labels)
        marks.add(sum(replica.high_watermark for replica in leading), labels)
        starts.add(sum(replica.start_offset for replica in leading), labels)
        done += len(replicas)
        if done >= limits.ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return [size, count, marks, starts, *moved]


async def _partitions(led: list[LocalReplica], *, has_detail: bool) -> AsyncIterator[MetricFamily]:
    """One series per partition."""
    mark = family("moldau_partition_high_watermark")
    start = family("moldau_partition_log_start_offset")
    size = family("moldau_partition_log_bytes")
    count = family("moldau_partition_replicas")
    in_sync = family("moldau_partition_in_sync_replicas")
    epoch = family("moldau_partition_epoch")
    for some in _slices(led):
        for replica in some:
            topic, partition = replica.partition
            labels = {"topic": topic, "partition": str(partition)}
            mark.add(replica.high_watermark, labels)
            start.add(replica.start_offset, labels)
            if has_detail:
                size.add(replica.size_bytes, labels)
                count.add(replica.replica_count, labels)
                in_sync.add(replica.in_sync_count(), labels)
                epoch.add(replica.epoch, labels)
        await asyncio.sleep(0)
    for one in (mark, start, size, count, in_sync, epoch):
        yield one


def _slices(replicas: list[LocalReplica]) -> Iterator[list[LocalReplica]]:
    for at in range(0, len(replicas), limits.ITEMS_PER_TURN):
        yield replicas[at : at + limits.ITEMS_PER_TURN]
