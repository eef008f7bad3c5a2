"""Transaction: a with block whose messages and offsets are committed atomically."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from moldau.client.errors import ClientError
from moldau.client.kafka.connect import translate
from moldau.client.retry import Backoff

if TYPE_CHECKING:
    from moldau.client.kafka.consumer import Consumer

_STEP_SECONDS_MAX = 60.0

_FENCED_HINT = (
    "another producer with this transactional_id has taken over; close this one, and give each "
    "worker its own transactional_id"
)


class Transaction:
    """Created by Producer.transaction(). Leaving the block commits; an error aborts."""

    def __init__(self, client: Producer, brokers: str, *, ready: bool) -> None:
        self._client = client
        self._brokers = brokers
        self.is_open = False
        if not ready:
            self._step("begin a transaction", client.init_transactions)

    def commit_offsets(self, consumer: "Consumer") -> None:
        """Commit in this transaction what the consumer has returned so far."""
        self.add_offsets(consumer.positions(), consumer.group_metadata())

    def add_offsets(self, offsets: list[TopicPartition], member: Any) -> None:
        """The same, from the next offsets and the metadata of the group member."""
        if offsets:
            self._step(
                "commit offsets in the transaction",
                lambda seconds: self._client.send_offsets_to_transaction(offsets, member, seconds),
            )

    def __enter__(self) -> Self:
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            raise self._error(error, "begin a transaction") from error
        self.is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_open = False
        if error is None:
            try:
                self._step("commit the transaction", self._client.commit_transaction)
            except ClientError as failure:
                self._abort_after(failure)
                raise
        else:
            self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        try:
            self._step("abort the transaction", self._client.abort_transaction)
        except ClientError as failure:
            # The broker aborts it at its timeout; the original error is more important.
            error.add_note(f"{failure}")

    def _step(self, doing: str, call: Callable[[float], object]) -> None:
        backoff = Backoff(_STEP_SECONDS_MAX)
        while True:
            try:
                call(max(1.0, backoff.seconds_left))
            except KafkaException as error:
                cause = error.args[0]
                is_retriable = isinstance(cause, KafkaError) and cause.retriable()
                if not is_retriable or backoff.is_over:
                    raise self._error(error, doing) from error
                backoff.sleep()
            else:
                return

    def _error(self, error: KafkaException, doing: str) -> ClientError:
        hint = fenced_hint(error.args[0])
        return translate(error, brokers=self._brokers, doing=doing, hint=hint)


def fenced_hint(cause: object) -> str:
    """The hint if the error says that a newer producer has taken over, else empty."""
    fenced = isinstance(cause, KafkaError) and cause.code() in (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
    return _FENCED_HINT if fenced else ""
