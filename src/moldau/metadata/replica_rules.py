"""Owns the rules for moving replicas: reassignments, what a group reached, internal topics.

The metadata holds a wish. The partition's leader sees it in its image, changes the voters of its
group one by one, and tells when the group has reached it. Until then every broker that may be a
voter stays in `replicas`, and nobody there gives up its log.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.metadata.checks import check_replicas, existing_topic
from moldau.metadata.commands import ReassignPartition, ReportReplicas, SpreadInternalTopics
from moldau.metadata.image import Image, Partition, Topic
from moldau.metadata.placement import ReplicaPlacer, Replicas, cluster_loads
from moldau.metadata.records import DesiredReplicasReached, DesiredReplicasSet, MetadataRecord
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex

USUAL_REPLICATION_MAX: Final = 3


class Reassignment(NamedTuple):
    """A move under way, as ListPartitionReassignments shows it."""

    topic: str
    partition: PartitionIndex
    replicas: Replicas
    adding: Replicas
    removing: Replicas


def reassignments(
    image: Image, wanted: Iterable[tuple[str, int]] | None = None
) -> list[Reassignment]:
    """The moves under way, of all partitions or of the `wanted` ones; unknown ones are left out."""
    found = []
    if wanted is None:
        found = [(t.name, p) for t in image.topics.values() for p in t.partitions if p.moving]
    else:
        for name, index in wanted:
            topic = image.topics.get(name)
            if topic is not None and 0 <= index < len(topic.partitions):
                found.append((name, topic.partitions[index]))
    return [
        Reassignment(
            name, partition.index, partition.replicas, partition.adding, partition.removing
        )
        for name, partition in found
        if partition.moving
    ]


def reassign_partition(command: ReassignPartition, image: Image) -> list[MetadataRecord]:
    topic = existing_topic(image, command.topic)
    if not 0 <= command.partition < len(topic.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{topic.name}' has {len(topic.partitions)} partitions, "
            f"and none is number {command.partition}",
        )
    partition = topic.partitions[command.partition]
    if command.replicas is None:
        return _cancel(topic, partition)
    target = check_replicas(partition.index, command.replicas, image, partition.wanted)
    factor = len(partition.origin or partition.replicas)
    if not command.allow_replication_factor_change and len(target) != factor:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Partition {partition.index} of '{topic.name}' has {factor} replicas and shall keep "
            f"that number, but {len(target)} are named",
        )
    return _wished(topic, partition, target)


def report_replicas(command: ReportReplicas, image: Image) -> list[MetadataRecord]:
    """Never refuses: a report may be late, about a wish that changed or a topic that is gone."""
    topic = image.topic_by_id(command.topic_id)
    if topic is None or not 0 <= command.partition < len(topic.partitions):
        return []
    partition = topic.partitions[command.partition]
    if (
        not partition.moving
        or command.wish != partition.wish
        or command.learners
        or set(command.voters) != set(partition.target)
    ):
        return []
    return [_reached(topic, partition, partition.target, partition.wish)]


def usual_replication(image: Image) -> int:
    """How many replicas a topic has in a cluster of this size, unless it is told otherwise."""
    return min(USUAL_REPLICATION_MAX, len(image.active_brokers()))


def spread_internal_topics(_: SpreadInternalTopics, image: Image) -> list[MetadataRecord]:
    factor = usual_replication(image)
    records: list[MetadataRecord] = []
    short = {
        topic.name: few
        for topic in image.topics.values()
        if topic.internal
        and (few := [p for p in topic.partitions if not p.moving and len(p.replicas) < factor])
    }
    if not short:
        # Asked several times a second: what all brokers hold is counted only when it matters.
        return records
    loads = cluster_loads(image)
    for name, few in short.items():
        topic = image.topics[name]
        rest = [p.wanted for p in topic.partitions if p not in few]
        spread = ReplicaPlacer(
            image.brokers.values(), topic_id=topic.topic_id, existing=rest, cluster=loads
        )
        for partition in few:
            spread.place(partition.replicas, factor)
        for partition, target in zip(few, spread.placed, strict=True):
            records += _wished(topic, partition, target)
    return records


def drain_moves(image: Image, count_max: int) -> list[ReassignPartition]:
    """The next moves away from brokers that leave, `count_max` at most."""
    leaving = [broker.id for broker in image.brokers.values() if not broker.active]
    moves: list[ReassignPartition] = []
    if not leaving or count_max < 1:
        return moves
    loads = cluster_loads(image)
    active = len(image.active_brokers())
    for topic in image.topics.values():
        spread: ReplicaPlacer | None = None
        for partition in topic.partitions:
            gone = [broker for broker in partition.wanted if broker in leaving]
            if not gone:
                continue
            if spread is None:
                existing = (other.wanted for other in topic.partitions)
                spread = ReplicaPlacer(
                    image.brokers.values(),
                    topic_id=topic.topic_id,
                    existing=existing,
                    cluster=loads,
                )
            factor = min(len(partition.wanted), active)
            if factor < len(partition.wanted) and not topic.internal:
                # Brokers went away since the drain was allowed: it waits for one to join.
                continue
            target = partition.wanted
            for broker in gone:
                target = spread.replace(target, broker, factor)
            moves.append(
                ReassignPartition(topic=topic.name, partition=partition.index, replicas=target)
            )
            if len(moves) == count_max:
                return moves
    return moves


def _cancel(topic: Topic, partition: Partition) -> list[MetadataRecord]:
    if not partition.moving:
        raise RefusedError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            f"Partition {partition.index} of '{topic.name}' is not being moved",
        )
    # The group may have come half the way: it has to travel back, and to report it.
    return _wished(topic, partition, partition.origin)


def _wished(topic: Topic, partition: Partition, target: Replicas) -> list[MetadataRecord]:
    if target == partition.wanted:
        return []
    if not partition.moving and set(target) == set(partition.replicas):
        # The same brokers in another order: only the preferred leader changes.
        return [_reached(topic, partition, target, partition.wish + 1)]
    leaving = tuple(broker for broker in partition.replicas if broker not in target)
    return [
        DesiredReplicasSet(
            topic_id=topic.topic_id,
            partition=partition.index,
            replicas=target + leaving,
            target=target,
            origin=partition.origin or partition.replicas,
            wish=partition.wish + 1,
        )
    ]


def _reached(
    topic: Topic, partition: Partition, replicas: Replicas, wish: int
) -> DesiredReplicasReached:
    return DesiredReplicasReached(
        topic_id=topic.topic_id, partition=partition.index, replicas=replicas, wish=wish
    )
