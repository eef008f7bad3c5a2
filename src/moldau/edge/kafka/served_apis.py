"""All Kafka APIs that the broker serves: those of the handler modules imported here."""
# ruff: noqa: F401

from collections.abc import Mapping
from types import MappingProxyType

from moldau.edge.kafka.handler import Api
from moldau.edge.kafka.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
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
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)

_MODULES = [each for each in tuple(vars().values()) if hasattr(each, "API")]

APIS: Mapping[int, Api] = MappingProxyType(
    {api.key: api for api in sorted((each.API for each in _MODULES), key=lambda api: api.key)}
)
"""By key, in their order."""

api_versions.advertise(list(APIS.values()))
