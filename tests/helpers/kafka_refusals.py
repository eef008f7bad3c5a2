"""Owns a request of each Kafka API, and what a client without rights is answered."""

from typing import Any

from handler_calls import topic
from msgspec import Struct

from moldau.model.errors import ErrorCode
from moldau.security.acl import Operation, Permission
from moldau.wire.fields import ZERO_UUID
from moldau.wire.messages import add_offsets_to_txn as add_offsets
from moldau.wire.messages import add_partitions_to_txn as add_partitions
from moldau.wire.messages import (
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
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request

ORDERS = topic("orders", (1, 2))
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID
TOPIC_TYPE, BROKER_TYPE, ANY = 2, 4, 1
BY_ID = {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
"""The first versions that name topics by id: a hidden topic is an unknown one."""


class Walk(Struct, frozen=True, kw_only=True):
    request: Request
    expects: tuple[ErrorCode, ...] = ()
    """The errors in the response; none: a list, which is empty."""
    versions: tuple[int, int] | None = None


def walk(request: Request, *expects: ErrorCode, versions: tuple[int, int] | None = None) -> Walk:
    return Walk(request=request, expects=expects, versions=versions)


def offset_fetch_group(topics: Any) -> offset_fetch.OffsetFetchRequestGroup:
    return offset_fetch.OffsetFetchRequestGroup(group_id="billing", topics=topics)


WALKS: list[Walk] = [
    walk(
        produce.ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topics=[
                produce.ProduceTopic(
                    name="orders",
                    topic_id=ORDERS.topic_id,
                    partitions=[produce.ProducePartition(index=0, records=b"records")],
                )
            ],
        ),
        NO_TOPIC,
    ),
    walk(
        produce.ProduceRequest(
            transactional_id="payments",
            acks=-1,
            timeout_ms=1000,
            topics=[
                produce.ProduceTopic(
                    name="orders",
                    partitions=[produce.ProducePartition(index=0, records=b"records")],
                )
            ],
        ),
        NO_TRANSACTION,
        versions=(3, 12),
    ),
    walk(
        fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[
                fetch.FetchTopic(
                    topic="orders",
                    topic_id=ORDERS.topic_id,
                    partitions=[
                        fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
                    ],
                )
            ],
        ),
        NO_TOPIC,
    ),
    walk(
        list_offsets.ListOffsetsRequest(
            topics=[
                list_offsets.ListOffsetsTopic(
                    name="orders",
                    partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
            ]
        ),
        NO_TOPIC,
    ),
    walk(metadata.MetadataRequest(topics=None), versions=(1, 13)),
    walk(
        metadata.MetadataRequest(
            topics=[
                metadata.MetadataRequestTopic(name="orders"),
                metadata.MetadataRequestTopic(name="nowhere"),
            ]
        ),
        NO_TOPIC,
        NO_TOPIC,
    ),
    walk(
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=None, topic_id=ORDERS.topic_id)]
        ),
        UNKNOWN_ID,
        versions=(12, 13),
    ),
    walk(
        offset_commit.OffsetCommitRequest(
            group_id="billing",
            member_id="",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        NO_GROUP,
        versions=(2, 9),
    ),
    walk(
        offset_commit.OffsetCommitRequest(
            group_id="billing",
            member_id="",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    topic_id=ORDERS.topic_id,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        UNKNOWN_ID,
        versions=(10, 10),
    ),
    walk(
        offset_fetch.OffsetFetchRequest(
            group_id="billing",
            topics=[offset_fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])],
        ),
        NO_GROUP,
        versions=(1, 7),
    ),
    walk(
        offset_fetch.OffsetFetchRequest(groups=[offset_fetch_group(None)]),
        NO_GROUP,
        versions=(8, 10),
    ),
    walk(find_coordinator.FindCoordinatorRequest(key="billing"), NO_GROUP, versions=(0, 3)),
    walk(
        find_coordinator.FindCoordinatorRequest(coordinator_keys=["billing"]),
        NO_GROUP,
        versions=(4, 6),
    ),
    walk(
        find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=["payments"]),
        NO_TRANSACTION,
        versions=(4, 6),
    ),
    walk(
        join_group.JoinGroupRequest(
            group_id="billing",
            session_timeout_ms=1,
            member_id="",
            protocol_type="consumer",
            protocols=[],
        ),
        NO_GROUP,
    ),
    walk(heartbeat.HeartbeatRequest(group_id="billing", generation_id=1, member_id="m"), NO_GROUP),
    walk(
        leave_group.LeaveGroupRequest(group_id="billing", member_id="m"), NO_GROUP, versions=(0, 2)
    ),
    walk(
        leave_group.LeaveGroupRequest(
            group_id="billing", members=[leave_group.LeaveGroupMember(member_id="m")]
        ),
        NO_GROUP,
        versions=(3, 5),
    ),
    walk(
        sync_group.SyncGroupRequest(
            group_id="billing", generation_id=1, member_id="m", assignments=[]
        ),
        NO_GROUP,
    ),
    walk(describe_groups.DescribeGroupsRequest(groups=["billing"]), NO_GROUP),
    walk(list_groups.ListGroupsRequest()),
    walk(api_versions.ApiVersionsRequest()),
    walk(
        create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            ]
        ),
        NO_TOPIC,
    ),
    walk(
        delete_topics.DeleteTopicsRequest(topic_names=["orders", "nowhere"], timeout_ms=1),
        NO_TOPIC,
        NO_TOPIC,
        versions=(1, 5),
    ),
    walk(
        delete_topics.DeleteTopicsRequest(
            topics=[
                delete_topics.DeleteTopicState(topic_id=ORDERS.topic_id),
                delete_topics.DeleteTopicState(topic_id=b"x" * 16),
                delete_topics.DeleteTopicState(name="orders", topic_id=ZERO_UUID),
            ],
            timeout_ms=1,
        ),
        UNKNOWN_ID,
        UNKNOWN_ID,
        NO_TOPIC,
        versions=(6, 6),
    ),
    walk(
        delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name="orders",
                    partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=1)],
                )
            ],
            timeout_ms=1,
        ),
        NO_TOPIC,
    ),
    walk(
        init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
        NO_CLUSTER,
    ),
    walk(
        init_producer_id.InitProducerIdRequest(
            transactional_id="payments", transaction_timeout_ms=1
        ),
        NO_TRANSACTION,
    ),
    walk(
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic="orders",
                    partitions=[
                        offset_for_leader_epoch.OffsetForLeaderPartition(
                            partition=0, leader_epoch=0
                        )
                    ],
                )
            ]
        ),
        NO_TOPIC,
    ),
    walk(
        add_partitions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="payments",
            v3_and_below_topics=[
                add_partitions.AddPartitionsToTxnTopic(name="orders", partitions=[0])
            ],
        ),
        NO_TRANSACTION,
    ),
    walk(
        add_offsets.AddOffsetsToTxnRequest(
            transactional_id="payments", producer_id=1, producer_epoch=0, group_id="billing"
        ),
        NO_TRANSACTION,
    ),
    walk(
        end_txn.EndTxnRequest(
            transactional_id="payments", producer_id=1, producer_epoch=0, committed=True
        ),
        NO_TRANSACTION,
    ),
    walk(
        write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                write_txn_markers.WritableTxnMarker(
                    producer_id=1,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=[
                        write_txn_markers.WritableTxnMarkerTopic(
                            name="orders", partition_indexes=[0]
                        )
                    ],
                    coordinator_epoch=0,
                )
            ]
        ),
        NO_CLUSTER,
    ),
    walk(
        txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="payments",
            group_id="billing",
            producer_id=1,
            producer_epoch=0,
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        txn_offset_commit.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        NO_TRANSACTION,
    ),
    walk(
        describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None
                )
                for kind, name in ((TOPIC_TYPE, "orders"), (TOPIC_TYPE, "x"), (BROKER_TYPE, "2"))
            ]
        ),
        NO_TOPIC,
        NO_TOPIC,
        NO_CLUSTER,
    ),
    walk(
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=[]
                )
                for kind, name in ((TOPIC_TYPE, "orders"), (BROKER_TYPE, ""))
            ],
            validate_only=True,
        ),
        NO_TOPIC,
        NO_CLUSTER,
    ),
    walk(
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.IncrementalConfigsResource(
                    resource_type=kind, resource_name=name, configs=[]
                )
                for kind, name in ((TOPIC_TYPE, "orders"), (BROKER_TYPE, "1"))
            ],
            validate_only=False,
        ),
        NO_TOPIC,
        NO_CLUSTER,
    ),
    walk(describe_log_dirs.DescribeLogDirsRequest(topics=None), versions=(1, 2)),
    walk(describe_log_dirs.DescribeLogDirsRequest(topics=None), NO_CLUSTER, versions=(3, 4)),
    walk(
        create_partitions.CreatePartitionsRequest(
            topics=[
                create_partitions.CreatePartitionsTopic(name="orders", count=9, assignments=None)
            ],
            timeout_ms=1,
            validate_only=True,
        ),
        NO_TOPIC,
    ),
    walk(delete_groups.DeleteGroupsRequest(groups_names=["billing"]), NO_GROUP),
    walk(elect_leaders.ElectLeadersRequest(topic_partitions=None), NO_CLUSTER, versions=(1, 2)),
    walk(
        elect_leaders.ElectLeadersRequest(
            topic_partitions=[elect_leaders.ElectLeadersTopic(topic="orders", partitions=[0])]
        ),
        NO_CLUSTER,
        NO_CLUSTER,
        versions=(1, 2),
    ),
    walk(
        alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    name="orders",
                    partitions=[
                        alter_partition_reassignments.ReassignablePartition(partition_index=0)
                    ],
                )
            ]
        ),
        NO_CLUSTER,
    ),
    walk(list_partition_reassignments.ListPartitionReassignmentsRequest(), NO_CLUSTER),
    walk(
        offset_delete.OffsetDeleteRequest(
            group_id="billing",
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name="orders",
                    partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)],
                )
            ],
        ),
        NO_GROUP,
    ),
    walk(describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)),
    walk(
        describe_producers.DescribeProducersRequest(
            topics=[describe_producers.DescribeProducersTopic(name="orders", partition_indexes=[0])]
        ),
        NO_TOPIC,
    ),
    walk(
        describe_transactions.DescribeTransactionsRequest(transactional_ids=["payments"]),
        NO_TRANSACTION,
    ),
    walk(list_transactions.ListTransactionsRequest(state_filters=[], producer_id_filters=[])),
    walk(
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="billing", member_id="m", member_epoch=0, subscribed_topic_names=["orders"]
        ),
        NO_GROUP,
    ),
    walk(consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=["billing"]), NO_GROUP),
    walk(describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[])),
    walk(
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.DescribeTopicPartitionsTopic(name="orders")]
        ),
        NO_TOPIC,
    ),
    walk(
        describe_acls.DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        ),
        NO_CLUSTER,
    ),
    walk(
        create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=TOPIC_TYPE,
                    resource_name="*",
                    principal="User:alice",
                    host="*",
                    operation=Operation.ALL,
                    permission_type=Permission.ALLOW,
                )
            ]
        ),
        NO_CLUSTER,
    ),
    walk(
        delete_acls.DeleteAclsRequest(
            filters=[
                delete_acls.DeleteAclsFilter(
                    resource_type_filter=ANY,
                    resource_name_filter=None,
                    pattern_type_filter=ANY,
                    principal_filter=None,
                    host_filter=None,
                    operation=ANY,
                    permission_type=ANY,
                )
            ]
        ),
        NO_CLUSTER,
    ),
    walk(
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None),
        NO_CLUSTER,
    ),
    walk(
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[
                alter_user_scram_credentials.ScramCredentialDeletion(name="bob", mechanism=1)
            ],
            upsertions=[
                alter_user_scram_credentials.ScramCredentialUpsertion(
                    name="alice",
                    mechanism=1,
                    iterations=4096,
                    salt=b"salt" * 4,
                    salted_password=b"p" * 32,
                )
            ],
        ),
        NO_CLUSTER,
        NO_CLUSTER,
    ),
    walk(
        describe_client_quotas.DescribeClientQuotasRequest(components=[], strict=False),
        NO_CLUSTER,
    ),
    walk(
        alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.AlterQuotasEntry(
                    entity=[
                        alter_client_quotas.AlterQuotasEntity(
                            entity_type="user", entity_name="alice"
                        )
                    ],
                    ops=[
                        alter_client_quotas.AlterQuotasOperation(
                            key="producer_byte_rate", value=1.0, remove=False
                        )
                    ],
                )
            ],
            validate_only=False,
        ),
        NO_CLUSTER,
    ),
]
