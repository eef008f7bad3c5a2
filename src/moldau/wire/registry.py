"""Owns the list of APIs: key, name, versions, and where the classes of each are.

Modules of messages are imported at the first use of their API, so that starting a broker costs
what it needs and not what exists. The versions stand here as well as at the classes, because a
request header is read before its message is known to be wanted; a test keeps the two equal.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from importlib import import_module
from typing import Generic, NamedTuple, TypeVar, cast

from moldau.wire.fields import VERSION_MAX, Versions
from moldau.wire.schema import Message, Request, Response

NEVER_FLEXIBLE = VERSION_MAX + 1


class ApiKey(IntEnum):
    """Numbers as in the Kafka protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api(NamedTuple):
    """What must be known of an API before its messages are loaded."""

    name: str
    """The stem of its two classes: ProduceRequest, ProduceResponse."""
    module: str
    versions: Versions
    flexible: int
    """First version with compact lengths and tagged fields."""


def _api(name: str, module: str, first: int, last: int, flexible: int = NEVER_FLEXIBLE) -> Api:
    return Api(name, module, Versions(first, last), flexible)


APIS: dict[int, Api] = {
    ApiKey.PRODUCE: _api("Produce", "produce", 3, 13, 9),
    ApiKey.FETCH: _api("Fetch", "fetch", 4, 18, 12),
    ApiKey.LIST_OFFSETS: _api("ListOffsets", "list_offsets", 1, 10, 6),
    ApiKey.METADATA: _api("Metadata", "metadata", 0, 13, 9),
    ApiKey.OFFSET_COMMIT: _api("OffsetCommit", "offset_commit", 2, 10, 8),
    ApiKey.OFFSET_FETCH: _api("OffsetFetch", "offset_fetch", 1, 10, 6),
    ApiKey.FIND_COORDINATOR: _api("FindCoordinator", "find_coordinator", 0, 6, 3),
    ApiKey.JOIN_GROUP: _api("JoinGroup", "join_group", 0, 9, 6),
    ApiKey.HEARTBEAT: _api("Heartbeat", "heartbeat", 0, 4, 4),
    ApiKey.LEAVE_GROUP: _api("LeaveGroup", "leave_group", 0, 5, 4),
    ApiKey.SYNC_GROUP: _api("SyncGroup", "sync_group", 0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: _api("DescribeGroups", "describe_groups", 0, 6, 5),
    ApiKey.LIST_GROUPS: _api("ListGroups", "list_groups", 0, 5, 3),
    ApiKey.SASL_HANDSHAKE: _api("SaslHandshake", "sasl_handshake", 0, 1),
    ApiKey.API_VERSIONS: _api("ApiVersions", "api_versions", 0, 4, 3),
    ApiKey.CREATE_TOPICS: _api("CreateTopics", "create_topics", 2, 7, 5),
    ApiKey.DELETE_TOPICS: _api("DeleteTopics", "delete_topics", 1, 6, 4),
    ApiKey.DELETE_RECORDS: _api("DeleteRecords", "delete_records", 0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: _api("InitProducerId", "init_producer_id", 0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _api(
        "OffsetForLeaderEpoch", "offset_for_leader_epoch", 0, 4, 4
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: _api("AddPartitionsToTxn", "add_partitions_to_txn", 0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: _api("AddOffsetsToTxn", "add_offsets_to_txn", 0, 4, 3),
    ApiKey.END_TXN: _api("EndTxn", "end_txn", 0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: _api("WriteTxnMarkers", "write_txn_markers", 1, 2, 1),
    ApiKey.TXN_OFFSET_COMMIT: _api("TxnOffsetCommit", "txn_offset_commit", 0, 5, 3),
    ApiKey.DESCRIBE_ACLS: _api("DescribeAcls", "describe_acls", 1, 3, 2),
    ApiKey.CREATE_ACLS: _api("CreateAcls", "create_acls", 1, 3, 2),
    ApiKey.DELETE_ACLS: _api("DeleteAcls", "delete_acls", 1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: _api("DescribeConfigs", "describe_configs", 1, 4, 4),
    ApiKey.ALTER_CONFIGS: _api("AlterConfigs", "alter_configs", 0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _api("DescribeLogDirs", "describe_log_dirs", 1, 4, 2),
    ApiKey.SASL_AUTHENTICATE: _api("SaslAuthenticate", "sasl_authenticate", 0, 2, 2),
    ApiKey.CREATE_PARTITIONS: _api("CreatePartitions", "create_partitions", 0, 3, 2),
    ApiKey.DELETE_GROUPS: _api("DeleteGroups", "delete_groups", 0, 2, 2),
    ApiKey.ELECT_LEADERS: _api("ElectLeaders", "elect_leaders", 0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(
        "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1, 1
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(
        "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1, 0
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(
        "ListPartitionReassignments", "list_partition_reassignments", 0, 0, 0
    ),
    ApiKey.OFFSET_DELETE: _api("OffsetDelete", "offset_delete", 0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _api("DescribeClientQuotas", "describe_client_quotas", 0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: _api("AlterClientQuotas", "alter_client_quotas", 0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(
        "DescribeUserScramCredentials", "describe_user_scram_credentials", 0, 0, 0
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(
        "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0, 0
    ),
    ApiKey.DESCRIBE_CLUSTER: _api("DescribeCluster", "describe_cluster", 0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: _api("DescribeProducers", "describe_producers", 0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: _api("DescribeTransactions", "describe_transactions", 0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: _api("ListTransactions", "list_transactions", 0, 2, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _api(
        "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1, 0
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _api(
        "ConsumerGroupDescribe", "consumer_group_describe", 0, 1, 0
    ),
    ApiKey.LIST_CONFIG_RESOURCES: _api("ListConfigResources", "list_config_resources", 0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _api(
        "DescribeTopicPartitions", "describe_topic_partitions", 0, 0, 0
    ),
}

M = TypeVar("M", bound=Message)


class MessageTypes(Mapping[int, type[M]], Generic[M]):
    """Classes by API key, imported when they are asked for."""

    def __init__(self, suffix: str, base: type[M]) -> None:
        self._suffix = suffix
        self._base = base
        self._loaded: dict[int, type[M]] = {}

    def __getitem__(self, key: int) -> type[M]:
        found = self._loaded.get(key)
        return self._load(key) if found is None else found

    def __contains__(self, key: object) -> bool:
        return key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)

    def _load(self, key: int) -> type[M]:
        api = APIS[key]
        module = import_module(f"moldau.wire.messages.{api.module}")
        loaded = getattr(module, api.name + self._suffix)
        if not issubclass(loaded, self._base):
            raise TypeError(f"{loaded!r} is no {self._base.__name__}")
        self._loaded[key] = cast("type[M]", loaded)
        return self._loaded[key]


REQUESTS: Mapping[int, type[Request]] = MessageTypes("Request", Request)
RESPONSES: Mapping[int, type[Response]] = MessageTypes("Response", Response)
