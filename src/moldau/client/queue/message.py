"""The messages of a queue. Each wraps a message of the API, and decodes fields on access."""

from datetime import UTC, datetime

from moldau.client.decoding import MessageContent
from moldau.proto.v1 import queue_pb2 as pb


class StoredMessage(MessageContent):
    """One message of a partition. Attributes, or items of the same names: message["topic"]."""

    __slots__ = ("_raw",)
    FIELDS = ("topic", "partition", "offset", "key", "value", "headers", "timestamp", "attempt")

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
        """None is a tombstone."""
        return self._raw.value if self._raw.HasField("value") else None

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Pairs in order; a name may occur more than once."""
        return [
            (header.key, header.value if header.HasField("value") else None)
            for header in self._raw.headers
        ]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return self._raw.timestamp_ms

    @property
    def attempt(self) -> int:
        """1 for the first delivery; 0 if deliveries are not counted."""
        return self._raw.attempt

    def __repr__(self) -> str:
        size = len(self.value) if self.value is not None else 0
        kind = type(self).__name__
        return f"<{kind} {self.topic}[{self.partition}]@{self.offset} {size} bytes>"


class DeliveredMessage(StoredMessage):
    """A message that was delivered to a consumer, which must settle it."""

    __slots__ = ("_consumer", "_is_settled")

    def __init__(self, raw: pb.Message, consumer: str) -> None:
        super().__init__(raw)
        self._consumer = consumer
        self._is_settled = False

    @property
    def token(self) -> bytes:
        """Identifies this delivery."""
        return self._raw.token

    @property
    def consumer(self) -> str:
        """The id of the consumer that it was delivered to."""
        return self._consumer

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked by this worker."""
        return self._is_settled

    @property
    def lease_until(self) -> datetime | None:
        """When the lease expires, by the broker's clock; None in ordered groups."""
        until = self._raw.lease_until_ms
        return datetime.fromtimestamp(until / 1000, UTC) if until else None
