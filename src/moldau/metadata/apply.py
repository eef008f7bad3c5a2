"""Applies a committed record to an image. Never raises.

A record that changes nothing returns the image itself, so part of the log can be replayed. A record
about a deleted object is skipped for the same reason.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import asdict, replace

from moldau.metadata.image import Broker, BrokerState, Image, Partition, Topic, collision_key
from moldau.metadata.queue_groups import QueueGroup
from moldau.metadata.records import (
    AclsAdded,
    AclsRemoved,
    BrokerConfigsSet,
    BrokerRegistered,
    BrokerStateSet,
    ClusterCreated,
    DesiredReplicasReached,
    DesiredReplicasSet,
    FeatureLevelSet,
    JoinTokenDropped,
    JoinTokenSet,
    MetadataRecord,
    PartitionsCreated,
    ProducerIdsAllocated,
    QueueGroupDropped,
    QueueGroupSet,
    QuotaSet,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    UserDeleted,
    UserSet,
)
from moldau.model.ids import BrokerId, PartitionIndex, ProducerId


def apply(image: Image, record: MetadataRecord) -> Image:  # noqa: C901 - one case per kind
    match record:
        case ClusterCreated():
            return _next(image, cluster_id=record.cluster_id)
        case BrokerRegistered():
            return _register_broker(image, record)
        case BrokerStateSet():
            return _set_broker_state(image, record)
        case FeatureLevelSet():
            return _next(image, feature_level=max(image.feature_level, record.level))
        case TopicCreated():
            return _create_topic(image, record)
        case TopicDeleted():
            return _delete_topic(image, record)
        case PartitionsCreated():
            return _create_partitions(image, record)
        case DesiredReplicasSet() | DesiredReplicasReached():
            return _set_replicas(image, record)
        case TopicConfigsSet():
            topic = image.topic_by_id(record.topic_id)
            if topic is None:
                return image
            return _with_topic(image, replace(topic, configs=record.configs))
        case BrokerConfigsSet():
            if record.broker_id in image.removed_brokers:
                return image
            configs = dict(image.broker_configs)
            configs[record.broker_id] = record.configs
            if not record.configs:
                del configs[record.broker_id]
            return _next(image, broker_configs=configs)
        case ProducerIdsAllocated():
            upto = ProducerId(record.first + record.count)
            return _next(image, next_producer_id=max(image.next_producer_id, upto))
        case QueueGroupSet():
            return _set_queue_group(image, record)
        case QueueGroupDropped():
            left = {name: one for name, one in image.queue_groups.items() if name != record.name}
            return _next(image, queue_groups=left)
        case UserSet() | UserDeleted() | QuotaSet() | JoinTokenSet() | JoinTokenDropped():
            return _apply_security(image, record)
        case AclsAdded():
            return _next(image, acls=image.acls.union(record.acls))
        case AclsRemoved():
            return _next(image, acls=image.acls.difference(record.acls))
        case _:
            assert_never(record)


def apply_all(image: Image, records: Iterable[MetadataRecord]) -> Image:
    for record in records:
        image = apply(image, record)
    return image


def _next(image: Image, **changes: object) -> Image:
    if all(getattr(image, name) == value for name, value in changes.items()):
        return image
    return replace(image, version=image.version + 1, **changes)


def _apply_security(
    image: Image, record: UserSet | UserDeleted | QuotaSet | JoinTokenSet | JoinTokenDropped
) -> Image:
    match record:
        case UserSet():
            return _next(image, users={**image.users, record.user.name: record.user})
        case UserDeleted():
            users = {name: user for name, user in image.users.items() if name != record.name}
            return _next(image, users=users)
        case QuotaSet():
            quotas = {**image.quotas, record.entity: record.limits}
            if not record.limits:
                del quotas[record.entity]
            return _next(image, quotas=quotas)
        case JoinTokenSet():
            tokens = {**image.join_tokens, record.token.id: record.token}
            return _next(image, join_tokens=tokens)
        case JoinTokenDropped():
            left = {name: one for name, one in image.join_tokens.items() if name != record.id}
            return _next(image, join_tokens=left)


def _register_broker(image: Image, record: BrokerRegistered) -> Image:
    if record.id in image.removed_brokers:
        return image
    known = image.brokers.get(record.id)
    if known is not None and record.epoch < known.epoch:
        return image
    # A restart does not cancel a drain.
    state = BrokerState.ACTIVE if known is None else known.state
    given = asdict(record)
    for name in ("listeners", "machine"):
        if given[name] is UNSET:
            del given[name]
    broker = Broker(**given, state=state)
    return _next(image, brokers={**image.brokers, record.id: broker})


def _set_broker_state(image: Image, record: BrokerStateSet) -> Image:
    known = image.brokers.get(record.broker_id)
    if known is None:
        return image
    broker = replace(known, state=record.state)
    if record.state is not BrokerState.REMOVED:
        return _next(image, brokers={**image.brokers, broker.id: broker})
    return _next(
        image,
        brokers={number: other for number, other in image.brokers.items() if number != broker.id},
        removed_brokers={**image.removed_brokers, broker.id: broker},
        broker_configs={
            number: configs
            for number, configs in image.broker_configs.items()
            if number != broker.id
        },
    )


def _create_topic(image: Image, record: TopicCreated) -> Image:
    # Only a replay finds the id or a colliding name taken: the later topic stays.
    if record.topic_id in image.topics_by_id:
        return image
    if collision_key(record.name) in image.collision_names:
        return image
    return _with_topic(
        image,
        Topic(
            name=record.name,
            topic_id=record.topic_id,
            partitions=_partitions(0, record.partitions),
            configs=record.configs,
            internal=record.internal,
        ),
    )


def _delete_topic(image: Image, record: TopicDeleted) -> Image:
    topic = image.topic_by_id(record.topic_id)
    if topic is None:
        return image
    topics = dict(image.topics)
    topics_by_id = dict(image.topics_by_id)
    collision_names = dict(image.collision_names)
    del topics[topic.name], topics_by_id[topic.topic_id]
    del collision_names[collision_key(topic.name)]
    return replace(
        image,
        topics=topics,
        topics_by_id=topics_by_id,
        collision_names=collision_names,
        queue_groups={
            name: _without_topic(group, topic.name) for name, group in image.queue_groups.items()
        }
        if image.queue_groups
        else image.queue_groups,
        version=image.version + 1,
    )


def _set_queue_group(image: Image, record: QueueGroupSet) -> Image:
    kept = tuple(
        name
        for name, topic_id in zip(record.group.topics, record.topic_ids, strict=False)
        if (topic := image.topics.get(name)) is not None and topic.topic_id == topic_id
    )
    group = replace(record.group, topics=kept)
    return _next(image, queue_groups={**image.queue_groups, group.name: group})


def _without_topic(group: QueueGroup, topic: str) -> QueueGroup:
    if topic not in group.topics:
        return group
    kept = tuple(name for name in group.topics if name != topic)
    return replace(group, topics=kept)


def _create_partitions(image: Image, record: PartitionsCreated) -> Image:
    topic = image.topic_by_id(record.topic_id)
    if topic is None or len(topic.partitions) != record.first:
        return image
    added = _partitions(record.first, record.partitions)
    return _with_topic(image, replace(topic, partitions=topic.partitions + added))


def _set_replicas(image: Image, record: DesiredReplicasSet | DesiredReplicasReached) -> Image:
    topic = image.topic_by_id(record.topic_id)
    if topic is None or not 0 <= record.partition < len(topic.partitions):
        return image
    index = record.partition
    match record:
        case DesiredReplicasSet():
            partition = Partition(
                index, record.replicas, record.target, record.origin, record.desired_version
            )
        case DesiredReplicasReached():
            partition = Partition(index, record.replicas, desired_version=record.desired_version)
    partitions = (*topic.partitions[:index], partition, *topic.partitions[index + 1 :])
    return _with_topic(image, replace(topic, partitions=partitions))


def _with_topic(image: Image, topic: Topic) -> Image:
    if image.topics.get(topic.name) == topic:
        return image
    collision_names = image.collision_names
    key = collision_key(topic.name)
    if key not in collision_names:
        collision_names = {**collision_names, key: topic.name}
    return replace(
        image,
        topics={**image.topics, topic.name: topic},
        topics_by_id={**image.topics_by_id, topic.topic_id: topic},
        collision_names=collision_names,
        version=image.version + 1,
    )


def _partitions(first: int, replicas: tuple[tuple[BrokerId, ...], ...]) -> tuple[Partition, ...]:
    return tuple(
        Partition(PartitionIndex(first + position), brokers)
        for position, brokers in enumerate(replicas)
    )
