"""Validates commands and turns them into records. Pure: reads an image, changes nothing.

`decide` returns the records of a command (none, if it changes nothing), or raises RefusedError with
Kafka's code and a message that names what to change. The caller decides one command at a time, so
that no two decisions use the same image. Rules for brokers, replicas, queue groups, and for users
and what they may do are in `broker_rules`, `replica_rules`, `queue_group_rules` and
`security_rules`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from moldau.metadata.broker_rules import (
    drain_broker,
    keep_broker,
    raise_feature_level,
    register_broker,
    remove_broker,
)
from moldau.metadata.checks import (
    check_replicas,
    check_replication_factor,
    check_topic_name,
    existing_topic,
    invalid_assignment,
    invalid_topic,
)
from moldau.metadata.commands import (
    AllocateProducerIds,
    AlterBrokerConfigs,
    AlterQuotas,
    AlterTopicConfigs,
    Command,
    CreateAcls,
    CreateCluster,
    CreateJoinToken,
    CreatePartitions,
    CreateTopic,
    DefineQueueGroup,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteTopic,
    DeleteUser,
    DrainBroker,
    DropQueueGroup,
    KeepBroker,
    PutScramCredentials,
    RaiseFeatureLevel,
    ReassignPartition,
    RegisterBroker,
    RemoveBroker,
    RemoveLostBrokers,
    ReplaceBrokerConfigs,
    ReplaceTopicConfigs,
    ReportReplicas,
    SpreadInternalTopics,
)
from moldau.metadata.config_changes import changed_configs
from moldau.metadata.image import CLUSTER_DEFAULT, INTERNAL_TOPICS, Image, Topic, collision_key
from moldau.metadata.lost_broker_rules import remove_lost_brokers
from moldau.metadata.placement import Replicas, cluster_loads, place
from moldau.metadata.queue_group_rules import define_queue_group, drop_queue_group
from moldau.metadata.records import (
    BrokerConfigsSet,
    ClusterCreated,
    MetadataRecord,
    PartitionsCreated,
    ProducerIdsAllocated,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
)
from moldau.metadata.replica_rules import (
    reassign_partition,
    report_replicas,
    spread_internal_topics,
)
from moldau.metadata.security_rules import (
    alter_quotas,
    create_acls,
    create_join_token,
    delete_acls,
    delete_join_token,
    delete_scram_credential,
    delete_user,
    put_scram_credentials,
)
from moldau.metadata.topic_config_table import TOPIC_CONFIGS
from moldau.metadata.topic_configs import BROKER_CONFIGS, check_broker_configs, check_topic_configs
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID, BrokerId, ProducerId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX

_PRODUCER_ID_MAX: Final = 2**63 - 1


def decide(command: Command, image: Image) -> list[MetadataRecord]:  # noqa: C901 - one case per kind
    match command:
        case CreateCluster():
            return _create_cluster(command, image)
        case RegisterBroker():
            return register_broker(command, image)
        case DrainBroker():
            return drain_broker(command, image)
        case KeepBroker():
            return keep_broker(command, image)
        case RemoveBroker():
            return remove_broker(command, image)
        case RemoveLostBrokers():
            return remove_lost_brokers(command, image)
        case RaiseFeatureLevel():
            return raise_feature_level(command, image)
        case CreateTopic():
            return _create_topic(command, image)
        case DeleteTopic():
            return _delete_topic(command, image)
        case CreatePartitions():
            return _create_partitions(command, image)
        case ReassignPartition():
            return reassign_partition(command, image)
        case ReportReplicas():
            return report_replicas(command, image)
        case SpreadInternalTopics():
            return spread_internal_topics(command, image)
        case AlterTopicConfigs():
            topic = existing_topic(image, command.topic)
            changed = changed_configs(command.changes, topic.configs, TOPIC_CONFIGS)
            return _set_topic_configs(topic, changed)
        case ReplaceTopicConfigs():
            return _set_topic_configs(existing_topic(image, command.topic), command.configs)
        case AlterBrokerConfigs():
            current = image.broker_overrides(command.broker_id)
            definitions = {name: found for name, (found, _) in BROKER_CONFIGS.items()}
            changed = changed_configs(command.changes, current, definitions)
            return _set_broker_configs(command.broker_id, changed, image)
        case ReplaceBrokerConfigs():
            return _set_broker_configs(command.broker_id, command.configs, image)
        case AllocateProducerIds():
            return _allocate_producer_ids(command, image)
        case DefineQueueGroup():
            return define_queue_group(command, image)
        case DropQueueGroup():
            return drop_queue_group(command, image)
        case PutScramCredentials():
            return put_scram_credentials(command, image)
        case DeleteScramCredential():
            return delete_scram_credential(command, image)
        case DeleteUser():
            return delete_user(command, image)
        case CreateAcls():
            return create_acls(command, image)
        case DeleteAcls():
            return delete_acls(command, image)
        case AlterQuotas():
            return alter_quotas(command, image)
        case CreateJoinToken():
            return create_join_token(command, image)
        case DeleteJoinToken():
            return delete_join_token(command, image)
        case _:
            assert_never(command)


def _create_cluster(command: CreateCluster, image: Image) -> list[MetadataRecord]:
    if not command.cluster_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "The cluster id must not be empty")
    if image.cluster_id == command.cluster_id:
        return []
    if image.cluster_id:
        raise RefusedError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"The cluster id is {image.cluster_id}, not {command.cluster_id}",
        )
    return [ClusterCreated(cluster_id=command.cluster_id)]


def _create_topic(command: CreateTopic, image: Image) -> list[MetadataRecord]:
    check_topic_name(command.name)
    existing = image.topic(command.name)
    if existing is not None and existing.topic_id == command.topic_id:
        # A retry: the topic is stored, and the response was lost.
        return []
    if existing is not None:
        raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists")
    if collision_key(command.name) in image.collision_names:
        # Which one it is, a client that may not describe it must not learn.
        raise invalid_topic(
            f"Topic '{command.name}' collides with another topic: "
            "names that differ only by '.' and '_' cannot exist together"
        )
    if command.name in INTERNAL_TOPICS and not command.internal:
        raise invalid_topic(f"Topic name '{command.name}' is reserved for internal use")
    if len(command.topic_id) != len(NO_TOPIC_ID) or command.topic_id == NO_TOPIC_ID:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Topic '{command.name}' needs an id of 16 bytes"
        )
    if command.topic_id in image.topics_by_id:
        raise RefusedError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"The id given for '{command.name}' is the id of "
            f"'{image.topics_by_id[command.topic_id].name}'",
        )
    return [
        TopicCreated(
            name=command.name,
            topic_id=command.topic_id,
            partitions=_first_partitions(command, image),
            configs=check_topic_configs(command.configs),
            internal=command.internal,
        )
    ]


def _first_partitions(command: CreateTopic, image: Image) -> tuple[Replicas, ...]:
    if command.assignments is None:
        _check_partition_count(command.partitions)
        check_replication_factor(command.replication_factor, image)
        return place(
            image.brokers.values(),
            topic_id=command.topic_id,
            count=command.partitions,
            replication_factor=command.replication_factor,
            cluster=cluster_loads(image),
        )
    if command.partitions != -1 or command.replication_factor != -1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            "With a replica assignment, partitions and replication factor must both be -1",
        )
    count = len(command.assignments)
    _check_partition_count(count)
    if sorted(command.assignments) != list(range(count)):
        raise invalid_assignment(
            f"The assignment must name the partitions 0 to {count - 1} once each"
        )
    return _check_assignments(
        [command.assignments[index] for index in range(count)], 0, None, image
    )


def _delete_topic(command: DeleteTopic, image: Image) -> list[MetadataRecord]:
    topic = _topic_to_delete(command, image)
    if topic.internal:
        raise invalid_topic(f"Topic '{topic.name}' is internal and cannot be deleted")
    return [TopicDeleted(topic_id=topic.topic_id)]


def _topic_to_delete(command: DeleteTopic, image: Image) -> Topic:
    if command.topic_id is None:
        if command.name is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "A topic to delete needs a name or an id")
        return existing_topic(image, command.name)
    topic = image.topic_by_id(command.topic_id)
    if topic is None or command.name not in (None, topic.name):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {command.topic_id.hex()}"
        )
    return topic


def _create_partitions(command: CreatePartitions, image: Image) -> list[MetadataRecord]:
    topic = existing_topic(image, command.topic)
    if topic.internal:
        # A key's partition is its hash modulo their number: more partitions would lose keys.
        raise invalid_topic(f"Topic '{topic.name}' is internal and cannot get more partitions")
    current = len(topic.partitions)
    if command.count == current:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"Topic '{topic.name}' already has {current} partitions"
        )
    _check_partition_count(command.count)
    if command.count < current:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}' has {current} partitions, and {command.count} were requested: "
            "partitions cannot be removed",
        )
    added = command.count - current
    if command.assignments is None:
        check_replication_factor(topic.replication_factor, image)
        partitions = place(
            image.brokers.values(),
            topic_id=topic.topic_id,
            count=added,
            replication_factor=topic.replication_factor,
            existing=[partition.desired for partition in topic.partitions],
            cluster=cluster_loads(image),
        )
    else:
        if len(command.assignments) != added:
            raise invalid_assignment(
                f"{added} partitions are to be added to '{topic.name}', "
                f"but the assignment has {len(command.assignments)}"
            )
        partitions = _check_assignments(
            command.assignments, current, topic.replication_factor, image
        )
    return [PartitionsCreated(topic_id=topic.topic_id, first=current, partitions=partitions)]


def _check_partition_count(count: int) -> None:
    if count < 1:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"A topic needs at least 1 partition, not {count}"
        )
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic can have at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}",
        )


def _check_assignments(
    assignments: Sequence[Sequence[int]], first: int, factor: int | None, image: Image
) -> tuple[Replicas, ...]:
    checked = []
    for index, replicas in enumerate(assignments, start=first):
        checked.append(check_replicas(index, replicas, image))
        factor = len(replicas) if factor is None else factor
        if len(replicas) != factor:
            raise invalid_assignment(
                f"Partition {index} has {len(replicas)} replicas, the others have {factor}"
            )
    return tuple(checked)


def _set_topic_configs(topic: Topic, configs: Mapping[str, str | None]) -> list[MetadataRecord]:
    checked = check_topic_configs(configs)
    if checked == topic.configs:
        return []
    return [TopicConfigsSet(topic_id=topic.topic_id, configs=checked)]


def _set_broker_configs(
    broker_id: BrokerId, configs: Mapping[str, str | None], image: Image
) -> list[MetadataRecord]:
    if broker_id != CLUSTER_DEFAULT and broker_id not in image.brokers:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} is unknown; known brokers: {sorted(image.brokers)}",
        )
    checked = check_broker_configs(configs)
    if checked == image.broker_overrides(broker_id):
        return []
    return [BrokerConfigsSet(broker_id=broker_id, configs=checked)]


def _allocate_producer_ids(command: AllocateProducerIds, image: Image) -> list[MetadataRecord]:
    if command.count < 1 or image.next_producer_id + command.count > _PRODUCER_ID_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"cannot allocate {command.count} producer ids"
        )
    return [ProducerIdsAllocated(first=ProducerId(image.next_producer_id), count=command.count)]
