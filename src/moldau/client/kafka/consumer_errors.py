"""Errors of a consumer: which are retriable, and hints for the others."""

from confluent_kafka import KafkaError

REASSIGNED_HINT = (
    "the group assigned it to another member, which continues from the last commit; poll again; "
    "if this happens often: poll more often, or raise max_poll_interval_ms"
)

RETRIABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""librdkafka retries these in the background; each is logged once."""


def commit_hint(cause: object) -> str:
    """The hint if a commit came too late, else empty."""
    reassigned = isinstance(cause, KafkaError) and cause.code() in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._STATE,
    )
    return REASSIGNED_HINT if reassigned else ""


def read_hint(cause: KafkaError) -> str:
    """The hint if the application can fix this error of a poll, else empty."""
    if cause.code() == KafkaError._AUTO_OFFSET_RESET:
        return "no offset is committed: seek, or set auto_offset_reset to earliest or latest"
    if cause.code() == KafkaError._MAX_POLL_EXCEEDED:
        return "poll more often, lower max_poll_records or raise max_poll_interval_ms"
    if cause.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return "a queue group, or its members use another protocol: choose another group_id"
    if cause.code() == KafkaError.INVALID_SESSION_TIMEOUT:
        return "raise session_timeout_ms and max_poll_interval_ms: brokers require 6,000 by default"
    return ""
