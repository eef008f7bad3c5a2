"""Rules for brokers that are lost together with their data directories.

They are removed at once and for good, with the replicas that they had: a broker that comes back
with such a directory is refused. That is what makes it safe to let partitions go on that had a
majority of their replicas there.
"""

from moldau.metadata.commands import RemoveLostBrokers
from moldau.metadata.image import BrokerState, Image, Partition
from moldau.metadata.placement import ReplicaPlacer, cluster_loads
from moldau.metadata.records import BrokerStateSet, MetadataRecord
from moldau.metadata.replica_rules import set_desired
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId


def remove_lost_brokers(command: RemoveLostBrokers, image: Image) -> list[MetadataRecord]:
    lost = frozenset(command.broker_ids)
    check_lost(image, lost)
    if lost <= image.removed_brokers.keys():
        return []
    removed: list[MetadataRecord] = [
        BrokerStateSet(broker_id=broker, state=BrokerState.REMOVED)
        for broker in sorted(lost & image.brokers.keys())
    ]
    return removed + _replacements(image, lost)


def check_lost(image: Image, lost: frozenset[BrokerId]) -> None:
    """Raises RefusedError unless these are brokers, and others are left."""
    if not lost:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "No broker is named as lost")
    unknown = sorted(lost - image.brokers.keys() - image.removed_brokers.keys())
    if unknown:
        raise RefusedError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker {unknown[0]} is unknown; known brokers: {sorted(image.brokers)}",
        )
    if not any(broker.id not in lost for broker in image.active_brokers()):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "No active broker would be left")


def has_replica_on(partition: Partition, brokers: frozenset[BrokerId]) -> bool:
    """Whether one of these brokers has, had or is to get a replica of it."""
    return not brokers.isdisjoint((*partition.replicas, *partition.target, *partition.origin))


def _replacements(image: Image, lost: frozenset[BrokerId]) -> list[MetadataRecord]:
    """Other brokers for the lost ones: as many replicas as before, or as there are brokers.

    Partitions of which no desired replica is left stay as they are: they can only be deleted.
    """
    left = [broker for broker in image.brokers.values() if broker.id not in lost]
    active = sum(broker.active for broker in left)
    loads = cluster_loads(image)
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        affected = [
            partition
            for partition in topic.partitions
            if not lost.isdisjoint(partition.desired) and not lost.issuperset(partition.desired)
        ]
        if not affected:
            continue
        spread = ReplicaPlacer(
            left,
            topic_id=topic.topic_id,
            existing=[partition.desired for partition in topic.partitions],
            cluster=loads,
        )
        for partition in affected:
            target = partition.desired
            for broker in sorted(lost.intersection(target)):
                target = spread.replace(target, broker, min(len(partition.desired), active))
            records += set_desired(topic, partition, target)
    return records
