"""Rules for replicas: reassignments, reports of leaders, and the spread of internal topics.

The metadata stores the desired replicas. The partition leader changes the voters of its group one
by one, and reports when they match. Until then every broker that may be a voter stays in
`replicas`, and keeps its log.
"""

from collections.abc import Iterable
from typing import Final

from moldau.metadata.checks import check_replicas, existing_partition
from moldau.metadata.commands import ReassignPartition, ReportReplicas, SpreadInternalTopics
from moldau.metadata.image import Image, Partition, Topic
from moldau.metadata.placement import ReplicaPlacer, Replicas, cluster_loads
from moldau.metadata.records import DesiredReplicasReached, DesiredReplicasSet, MetadataRecord
from moldau.model.errors import ErrorCode, RefusedError

DEFAULT_REPLICATION_MAX: Final = 3


def reassignments(
    image: Image, wanted: Iterable[tuple[str, int]] | None = None
) -> list[tuple[str, Partition]]:
    """Partitions under reassignment, all or the `wanted` ones, with the names of their topics.

    Unknown partitions are ignored.
    """
    if wanted is None:
        return [(t.name, p) for t in image.topics.values() for p in t.partitions if p.moving]
    found = []
    for name, index in wanted:
        topic = image.topics.get(name)
        if topic is not None and 0 <= index < len(topic.partitions):
            partition = topic.partitions[index]
            if partition.moving:
                found.append((name, partition))
    return found


def reassign_partition(command: ReassignPartition, image: Image) -> list[MetadataRecord]:
    topic, partition = existing_partition(image, command.topic, command.partition)
    if command.replicas is None:
        return _cancel(topic, partition, image)
    target = check_replicas(partition.index, command.replicas, image, partition.desired)
    factor = len(partition.origin or partition.replicas)
    if not command.allow_replication_factor_change and len(target) != factor:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Partition {partition.index} of '{topic.name}' has {factor} replicas, the request has "
            f"{len(target)} and does not allow to change the replication factor",
        )
    return set_desired(topic, partition, target)


def report_replicas(command: ReportReplicas, image: Image) -> list[MetadataRecord]:
    """Never raises: a late report, of older desired replicas or a deleted topic, is ignored."""
    topic = image.topic_by_id(command.topic_id)
    if topic is None or not 0 <= command.partition < len(topic.partitions):
        return []
    partition = topic.partitions[command.partition]
    if (
        not partition.moving
        or command.desired_version != partition.desired_version
        or command.learners
        or set(command.voters) != set(partition.target)
    ):
        return []
    return [_reached(topic, partition, partition.target, partition.desired_version)]


def default_replication(image: Image) -> int:
    """The default replication factor in a cluster of this size."""
    return min(DEFAULT_REPLICATION_MAX, len(image.active_brokers()))


def spread_internal_topics(_: SpreadInternalTopics, image: Image) -> list[MetadataRecord]:
    factor = default_replication(image)
    records: list[MetadataRecord] = []
    short = {
        topic.name: few
        for topic in image.topics.values()
        if topic.internal
        and (few := [p for p in topic.partitions if not p.moving and len(p.replicas) < factor])
    }
    if not short:
        # Called several times a second: loads are counted only if needed.
        return records
    loads = cluster_loads(image)
    for name, few in short.items():
        topic = image.topics[name]
        rest = [p.desired for p in topic.partitions if p not in few]
        spread = ReplicaPlacer(
            image.brokers.values(), topic_id=topic.topic_id, existing=rest, cluster=loads
        )
        for partition in few:
            spread.place(partition.replicas, factor)
        for partition, target in zip(few, spread.placed, strict=True):
            records += set_desired(topic, partition, target)
    return records


def drain_moves(image: Image, count_max: int) -> list[ReassignPartition]:
    """The next reassignments off draining brokers, at most `count_max`."""
    leaving = [broker.id for broker in image.brokers.values() if not broker.active]
    moves: list[ReassignPartition] = []
    if not leaving or count_max < 1:
        return moves
    loads = cluster_loads(image)
    active = len(image.active_brokers())
    for topic in image.topics.values():
        spread: ReplicaPlacer | None = None
        for partition in topic.partitions:
            draining = [broker for broker in partition.desired if broker in leaving]
            if not draining:
                continue
            if spread is None:
                existing = (other.desired for other in topic.partitions)
                spread = ReplicaPlacer(
                    image.brokers.values(),
                    topic_id=topic.topic_id,
                    existing=existing,
                    cluster=loads,
                )
            factor = min(len(partition.desired), active)
            if factor < len(partition.desired) and not topic.internal:
                # Brokers left since the drain was accepted: wait until another one joins.
                continue
            target = partition.desired
            for broker in draining:
                target = spread.replace(target, broker, factor)
            moves.append(
                ReassignPartition(topic=topic.name, partition=partition.index, replicas=target)
            )
            if len(moves) == count_max:
                return moves
    return moves


def _cancel(topic: Topic, partition: Partition, image: Image) -> list[MetadataRecord]:
    if not partition.moving:
        raise RefusedError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            f"Partition {partition.index} of '{topic.name}' is not being reassigned",
        )
    gone = [broker for broker in partition.origin if broker not in image.brokers]
    if gone:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Partition {partition.index} of '{topic.name}' was on broker {gone[0]}, which was "
            "removed: the move cannot be cancelled; move it to other brokers instead",
        )
    # The group may have changed already: it must change back, and report it.
    return set_desired(topic, partition, partition.origin)


def set_desired(topic: Topic, partition: Partition, target: Replicas) -> list[MetadataRecord]:
    """The records that make `target` the desired replicas."""
    if target == partition.desired:
        return []
    if not partition.moving and set(target) == set(partition.replicas):
        # The same brokers in another order: only the preferred leader changes.
        return [_reached(topic, partition, target, partition.desired_version + 1)]
    leaving = tuple(broker for broker in partition.replicas if broker not in target)
    return [
        DesiredReplicasSet(
            topic_id=topic.topic_id,
            partition=partition.index,
            replicas=target + leaving,
            target=target,
            origin=partition.origin or partition.replicas,
            desired_version=partition.desired_version + 1,
        )
    ]


def _reached(
    topic: Topic, partition: Partition, replicas: Replicas, version: int
) -> DesiredReplicasReached:
    return DesiredReplicasReached(
        topic_id=topic.topic_id,
        partition=partition.index,
        replicas=replicas,
        desired_version=version,
    )
