"""Owns the state of one transactional id, and what of it is under way."""

from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.transactions.events import Request
from moldau.transactions.records import StoredTransaction, TransactionRecord
from moldau.transactions.timers import TimerKey, TimerKind


class TransactionWrite:
    """States of one transactional id on their way to the log, oldest first, as one batch.

    `answered` is the request that the last state answers; `then_again`: the one that it makes way
    for. A state of None forgets the id.
    """

    __slots__ = ("answered", "entry", "states", "then_again")

    def __init__(
        self,
        entry: "TransactionEntry",
        states: list[StoredTransaction | None],
        *,
        answered: Request | None = None,
        then_again: Request | None = None,
    ) -> None:
        self.entry = entry
        self.states = states
        self.answered = answered
        self.then_again = then_again


class TransactionEntry:
    """One transactional id.

    `stored` is durable: it changes only with records that are committed. All else is lost with the
    coordinator, and made anew from `stored` by the next one.
    """

    __slots__ = (
        "asked",
        "deadline",
        "parked",
        "retries",
        "retry_key",
        "stored",
        "timeout_key",
        "transactional_id",
        "unmarked",
        "writing",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.timeout_key = TimerKey(TimerKind.TIMEOUT, transactional_id)
        self.retry_key = TimerKey(TimerKind.RETRY, transactional_id)
        self.stored: StoredTransaction | None = None
        self.writing: int | None = None
        """Token of the one write under way."""
        self.unmarked: set[TopicPartition] = set()
        """Partitions that still need the marker of the prepared transaction."""
        self.asked: dict[int, set[TopicPartition]] = {}
        """token of a WriteMarkers -> partitions of it that are not heard of yet"""
        self.retries = 0
        self.deadline: float | None = None
        """When the open transaction times out."""
        self.parked: dict[int, Request] = {}
        """Requests that wait until the id is no longer busy, oldest first."""

    def apply(self, record: TransactionRecord) -> None:
        """A committed record; the only change of durable state."""
        self.stored = record.value

    @property
    def is_marked(self) -> bool:
        """Whether a transaction has ended everywhere, and that is not stored yet."""
        return (
            self.stored is not None
            and self.stored.state.is_prepared
            and not self.unmarked
            and self.writing is None
        )

    @property
    def forgettable(self) -> bool:
        return self.stored is None and self.writing is None and not self.parked


def client_error(error: ErrorCode) -> ErrorCode:
    """An error of the append, as a client of the coordinator understands it."""
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
        case (
            ErrorCode.MESSAGE_TOO_LARGE
            | ErrorCode.RECORD_LIST_TOO_LARGE
            | ErrorCode.INVALID_FETCH_SIZE
        ):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error
