"""Owns what a consumer says of errors: which pass, which are told, and what to do about them."""

from types import TracebackType

from confluent_kafka import KafkaError, KafkaException

from moldau.client.kafka.connect import translate

TAKEN_HINT = (
    "the group has given it to another member, who reads it again from what was committed; "
    "poll to go on; if that comes often: poll more often, or raise max_poll_interval_ms"
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
"""librdkafka goes on trying by itself: the user is told in the log, once."""


class translated:  # noqa: N801
    """librdkafka's errors in a with block become ours, which say what was tried."""

    def __init__(self, brokers: str, doing: str) -> None:
        self._brokers = brokers
        self._doing = doing

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KafkaException):
            raise translate(error, brokers=self._brokers, doing=self._doing) from error


def commit_hint(cause: object) -> str:
    """What to do, if a commit comes too late; else nothing."""
    taken = isinstance(cause, KafkaError) and cause.code() in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._STATE,
    )
    return TAKEN_HINT if taken else ""


def read_hint(cause: KafkaError) -> str:
    """What to do, if this error of a poll is the application's to mend; else nothing."""
    if cause.code() == KafkaError._AUTO_OFFSET_RESET:
        return "nothing is committed there: seek, or set auto_offset_reset to earliest or latest"
    if cause.code() == KafkaError._MAX_POLL_EXCEEDED:
        return "poll more often, lower max_poll_records or raise max_poll_interval_ms"
    if cause.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return "the group is a queue, or has members of another kind: choose another group_id"
    if cause.code() == KafkaError.INVALID_SESSION_TIMEOUT:
        return "session_timeout_ms and max_poll_interval_ms: brokers want 6,000 at least by default"
    return ""
