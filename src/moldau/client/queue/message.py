"""Owns the messages that a worker hands out, and those that are looked at. Each wraps the API's own
message, and reads it only where it is asked."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from moldau.client.decoding import item_of, json_of, text_of
from moldau.proto.v1 import queue_pb2 as pb

if TYPE_CHECKING:
    from moldau.client.queue.sync_worker import Worker
    from moldau.client.queue.worker import AsyncWorker

FIELDS: Final = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "headers",
    "timestamp",
    "attempt",
)


class StoredMessage:
    """One message of a partition. Attributes, or items of the same names: message["topic"]."""

    __slots__ = ("_raw",)

    def __init__(self, raw: pb.Message) -> None:
        self._raw = raw

    @property
    def topic(self) -> str:
        return self._raw.topic

    @property
    def partition(self) -> int:
        return self._raw.partition

    @property
    def offset(self) -> int:
        return self._raw.offset

    @property
    def key(self) -> bytes | None:
        return self._raw.key if self._raw.HasField("key") else None

    @property
    def value(self) -> bytes | None:
        """The bytes; None is a tombstone."""
        return self._raw.value if self._raw.HasField("value") else None

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Pairs in their order; a name may come more than once."""
        return [
            (header.key, header.value if header.HasField("value") else None)
            for header in self._raw.headers
        ]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return self._raw.timestamp_ms

    @property
    def time(self) -> datetime:
        """The timestamp with its zone, UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def attempt(self) -> int:
        """1 the first time. 0 where deliveries are not counted."""
        return self._raw.attempt

    @property
    def text(self) -> str:
        """The value as text. Raises InvalidArgumentError if it is no UTF-8."""
        return text_of(self)

    def json(self) -> Any:
        """The value read as JSON; None for a tombstone. Raises InvalidArgumentError."""
        return json_of(self)

    def __getitem__(self, name: str) -> Any:
        return item_of(self, name, FIELDS)

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def keys(self) -> tuple[str, ...]:
        """The names for item access; so dict(message) works."""
        return FIELDS

    def __repr__(self) -> str:
        size = len(self.value) if self.value is not None else 0
        kind = type(self).__name__
        return f"<{kind} {self.topic}[{self.partition}]@{self.offset} {size} bytes>"


class DeliveredMessage(StoredMessage):
    """A message that was delivered to a consumer, and is to be settled by it."""

    __slots__ = ("_consumer", "_is_settled")

    def __init__(self, raw: pb.Message, consumer: str) -> None:
        super().__init__(raw)
        self._consumer = consumer
        self._is_settled = False

    @property
    def token(self) -> bytes:
        """Stands for this delivery."""
        return self._raw.token

    @property
    def consumer(self) -> str:
        """To whom it was delivered: the name that the group knows the worker by."""
        return self._consumer

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked here."""
        return self._is_settled

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends, by the broker's clock; None in ordered groups."""
        until = self._raw.lease_until_ms
        return datetime.fromtimestamp(until / 1000, UTC) if until else None


class AsyncQueueMessage(DeliveredMessage):
    """A message of an AsyncWorker."""

    __slots__ = ("_worker",)

    def __init__(self, raw: pb.Message, consumer: str, worker: "AsyncWorker") -> None:
        super().__init__(raw, consumer)
        self._worker = worker

    async def ack(self) -> None:
        """It is done. Raises LeaseLostError if that comes too late."""
        await self._worker.ack_one(self)

    async def nack(self, *, delay: float | None = None, reason: str = "") -> None:
        """It could not be done: deliver it again, after `delay` seconds or the group's backoff."""
        await self._worker.nack_one(self, delay=delay, reason=reason)

    async def extend(self, seconds: float) -> None:
        """It takes longer: the lease lasts so long from now."""
        await self._worker.extend_one(self, seconds)


class QueueMessage(DeliveredMessage):
    """A message of a Worker."""

    __slots__ = ("_worker",)

    def __init__(self, raw: pb.Message, consumer: str, worker: "Worker") -> None:
        super().__init__(raw, consumer)
        self._worker = worker

    def ack(self) -> None:
        """It is done. Raises LeaseLostError if that comes too late."""
        self._worker.ack_one(self)

    def nack(self, *, delay: float | None = None, reason: str = "") -> None:
        """It could not be done: deliver it again, after `delay` seconds or the group's backoff."""
        self._worker.nack_one(self, delay=delay, reason=reason)

    def extend(self, seconds: float) -> None:
        """It takes longer: the lease lasts so long from now."""
        self._worker.extend_one(self, seconds)
