"""Owns the list of everything that the Kafka door serves."""

from collections.abc import Mapping
from types import MappingProxyType

from moldau.edge.kafka import (
    alter_configs,
    alter_partition_reassignments,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    versions,
)
from moldau.edge.kafka.api import Api

_MODULES = (
    alter_configs,
    alter_partition_reassignments,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    versions,
)

APIS: Mapping[int, Api] = MappingProxyType(
    {api.key: api for api in sorted((each.API for each in _MODULES), key=lambda api: api.key)}
)
"""By key, in their order."""

versions.advertise(list(APIS.values()))
