"""Owns what to do about an error: a sentence for each code, where no better one is known."""

from typing import Final

from moldau.model.errors import ErrorCode

_TRY_AGAIN: Final = "try again after Retry-After; GET /readyz says what this broker lacks"
_UNSURE: Final = "it may have happened: look before you send it again"
_ROOM: Final = "try again after Retry-After, with fewer requests or smaller ones at once"
_TOPICS: Final = "GET /api/v1/topics lists the topics, GET /api/v1/topics/{topic} the partitions"
_READ: Final = "GET /api/v1/openapi.json says what is expected"

_HINTS: Final = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker's log says more",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _TOPICS,
    ErrorCode.UNKNOWN_TOPIC_ID: _TOPICS,
    ErrorCode.RESOURCE_NOT_FOUND: "GET / lists what there is",
    ErrorCode.GROUP_ID_NOT_FOUND: "GET /api/v1/groups lists the groups",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "GET /api/v1/brokers lists the brokers",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use the topic that is there, or choose another name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "begin at offset=earliest or offset=latest",
    ErrorCode.MESSAGE_TOO_LARGE: "send less at once; a record is bounded by the topic's "
    "max.message.bytes",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has up to 249 letters, digits, '.', '_' and '-'; "
    "internal topics are the broker's own",
    ErrorCode.INVALID_PARTITIONS: "leave partitions out to take the broker's default",
    ErrorCode.INVALID_REPLICATION_FACTOR: "GET /api/v1/brokers lists the brokers; leave "
    "replication_factor out to take the default",
    ErrorCode.INVALID_CONFIG: "GET of any topic lists the settings that there are",
    ErrorCode.INVALID_TIMESTAMP: "leave timestamp out to take the broker's time",
    ErrorCode.REQUEST_TIMED_OUT: _UNSURE,
    ErrorCode.NETWORK_EXCEPTION: _UNSURE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _UNSURE,
    ErrorCode.NOT_ENOUGH_REPLICAS: "wait until more brokers are in sync, or lower the topic's "
    "min.insync.replicas",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _ROOM,
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's log says what is wrong with its disk",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "start the broker with another id, or with none",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the data directory is of another cluster: take a new one",
}


def hint_for(code: ErrorCode, status: int) -> str:
    """Never empty."""
    found = _HINTS.get(code)
    if found is not None:
        return found
    if status == 503:
        return _TRY_AGAIN
    if status == 409:
        return "GET /api/v1/topology shows what is there"
    return _READ
