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
    removed: list[MetadataRecord] = [
        BrokerStateSet(broker_id=broker, state=BrokerState.REMOVED)
        for broker in sorted(lost & image.brokers.keys())
    ]
    return removed + _replacements(image, lost | image.removed_brokers.keys())


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


def _replacements(image: Image, gone: frozenset[BrokerId]) -> list[MetadataRecord]:
    """Other brokers for those that are gone: as many replicas as before, or as there are brokers.

    Partitions of which no desired replica is left stay as they are: they can only be deleted. Those
    of internal topics cannot, and begin again on other brokers.
    """
    left = [broker for broker in image.brokers.values() if broker.id not in gone]
    active = sum(broker.active for broker in left)
    loads = cluster_loads(image)
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        affected = [
            partition
            for partition in topic.partitions
            if not gone.isdisjoint(partition.desired)
            and (topic.internal or not gone.issuperset(partition.desired))
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
            for broker in sorted(gone.intersection(target)):
                target = spread.replace(target, broker, min(len(partition.desired), active))
            records += set_desired(topic, partition, target)
    return records
