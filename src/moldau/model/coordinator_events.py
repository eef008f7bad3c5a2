"""Events and effects of all sans-IO coordinators; `coordination.coordinator_host` runs them."""

from typing import Final, Generic, TypeVar

from msgspec import Struct

from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId

R = TypeVar("R")

NO_PRODUCER: Final = (ProducerId(-1), ProducerEpoch(-1))
TOO_LARGE: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }
)
"""Append errors that are not retriable."""


class Tick(Struct, frozen=True):
    """Event: time has passed. Due at `next_deadline()`; earlier or later does no harm."""


class Persisted(Struct, frozen=True):
    """Event: the records of a Persist are committed."""

    token: int


class PersistFailed(Struct, frozen=True):
    """Event: the records of a Persist are not in the log and never will be."""

    token: int
    error: ErrorCode


class Reply(Struct, Generic[R], frozen=True):
    """Effect: reply to a request."""

    request_id: int
    result: R


class Persist(Struct, frozen=True):
    """Effect: append these records as one batch; a None value is a tombstone.

    Persisted(token) follows when they are committed, PersistFailed(token, error) when it is certain
    that they never will be. If the outcome is unknown, the coordinator ends.
    """

    token: int
    what: str
    """The object that the records belong to, for logs."""
    records: tuple[tuple[bytes, bytes | None], ...]
    producer: tuple[ProducerId, ProducerEpoch] = NO_PRODUCER
    """The producer whose transaction the records belong to, if any."""


CoordinatorEvent = Tick | Persisted | PersistFailed


def client_error(error: ErrorCode) -> ErrorCode:
    """The error code for clients of the coordinator, for an error of the append."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR if error in TOO_LARGE else error
