"""The hint for each error code: what the client should do next."""

from typing import Final

from moldau.model.errors import ErrorCode

_RETRY: Final = "retry after Retry-After; GET /readyz shows why this broker is not ready"
_UNCERTAIN: Final = "the request may have been executed: check before you retry"
_THROTTLED: Final = "retry after Retry-After, with fewer or smaller concurrent requests"
_TOPICS: Final = "GET /api/v1/topics lists the topics, GET /api/v1/topics/{topic} the partitions"
_RIGHTS: Final = "an administrator can grant the right: moldau acl add --help"
_SEE_OPENAPI: Final = "see GET /api/v1/openapi.json for what is expected"

_HINTS: Final = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "see the broker's log for details",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _TOPICS,
    ErrorCode.UNKNOWN_TOPIC_ID: _TOPICS,
    ErrorCode.RESOURCE_NOT_FOUND: "GET / lists all paths",
    ErrorCode.GROUP_ID_NOT_FOUND: "GET /api/v1/groups lists the groups",
    ErrorCode.NON_EMPTY_GROUP: "stop the members of the group first",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "GET /api/v1/transactions lists the transactional ids",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "GET /api/v1/brokers lists the brokers",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use the existing topic, or choose another name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "start at offset=earliest or offset=latest",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller requests; the limit of a record batch is the "
    "topic's max.message.bytes",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has up to 249 letters, digits, '.', '_' and '-'; "
    "internal topics are reserved for the broker",
    ErrorCode.INVALID_PARTITIONS: "omit partitions to use the broker's default",
    ErrorCode.INVALID_REPLICATION_FACTOR: "GET /api/v1/brokers lists the brokers; omit "
    "replication_factor to use the default",
    ErrorCode.INVALID_CONFIG: "GET /api/v1/topics/{topic} lists the supported settings",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "GET /api/v1/topics/{topic} shows what is adding and "
    "removing; there is nothing to cancel",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "GET /api/v1/brokers lists the brokers",
    ErrorCode.INVALID_TIMESTAMP: "omit timestamp to use the broker's time",
    ErrorCode.REQUEST_TIMED_OUT: _UNCERTAIN,
    ErrorCode.NETWORK_EXCEPTION: _UNCERTAIN,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _UNCERTAIN,
    ErrorCode.NOT_ENOUGH_REPLICAS: "wait until more brokers are in sync, or lower the topic's "
    "min.insync.replicas",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _THROTTLED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _RIGHTS,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    ErrorCode.KAFKA_STORAGE_ERROR: "check the broker's disk; its log has the cause",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "start the broker with another id, or without one",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the data directory belongs to another cluster: use a new "
    "one",
}


def hint_for(code: ErrorCode, status: int) -> str:
    """Never empty."""
    found = _HINTS.get(code)
    if found is not None:
        return found
    if status == 503:
        return _RETRY
    if status == 409:
        return "GET /api/v1/topology shows the current state"
    return _SEE_OPENAPI
