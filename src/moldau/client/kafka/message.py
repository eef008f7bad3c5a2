"""Message: what a consumer returns. Reads the librdkafka message on access."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import msgspec
from confluent_kafka import Message as RawMessage

from moldau.client.decoding import MessageContent

Headers = list[tuple[str, bytes | None]]


class Message(MessageContent, msgspec.Struct, frozen=True, eq=False, gc=False):
    """One message of a partition. Attributes, or items of the same names: message["topic"].

    It may be kept, passed to other threads, and pickled.
    """

    # A msgspec struct is created in C, in a third of the time of a Python class. It is never part
    # of a reference cycle, so the garbage collector can ignore it.
    FIELDS: ClassVar = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")
    _raw: RawMessage
    value: bytes | None
    """None is a tombstone, which deletes its key from a compacted topic."""

    @classmethod
    def of(
        cls,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = 0,
        offset: int = 0,
        headers: Headers | None = None,
        timestamp: int = 0,
    ) -> Self:
        """A message that came from no broker, for tests of handlers."""
        kept = _Kept(topic, partition, offset, key, value, headers or [], timestamp)
        # It has the methods of a librdkafka message that are used here.
        return cls(kept, value)  # type: ignore[arg-type]

    # librdkafka's types allow None and text headers, for sent messages and events. A message that
    # was read always has a partition and an offset; checking would double the cost.

    @property
    def topic(self) -> str:
        return self._raw.topic()  # type: ignore[return-value]

    @property
    def partition(self) -> int:
        return self._raw.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._raw.offset()  # type: ignore[return-value]

    @property
    def key(self) -> bytes | None:
        return self._raw.key()

    @property
    def headers(self) -> Headers:
        """Pairs in order; a name may occur more than once."""
        return list(self._raw.headers() or ())  # type: ignore[arg-type]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return self._raw.timestamp()[1]

    def __reduce__(self) -> tuple[Callable[..., "Message"], tuple[object, ...]]:
        fields = tuple(getattr(self, name) for name in self.FIELDS)
        return _restore, (type(self), fields)

    def __repr__(self) -> str:
        size = f"{len(self.value)} bytes" if self.value is not None else "tombstone"
        return f"<Message {self.topic}[{self.partition}]@{self.offset} {size}>"


class _Kept:
    """Stands in for a librdkafka message, which can be neither pickled nor constructed."""

    __slots__ = ("_fields",)

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def topic(self) -> Any:
        return self._fields[0]

    def partition(self) -> Any:
        return self._fields[1]

    def offset(self) -> Any:
        return self._fields[2]

    def key(self) -> Any:
        return self._fields[3]

    def headers(self) -> Any:
        return self._fields[5]

    def timestamp(self) -> Any:
        return 1, self._fields[6]


def _restore(kind: type[Message], fields: tuple[Any, ...]) -> Message:
    return kind(_Kept(*fields), fields[kind.FIELDS.index("value")])  # type: ignore[arg-type]


def wrap(raws: list[RawMessage]) -> list[Message]:
    """Wrap librdkafka messages, without an interpreted step per message."""
    return list(map(Message, raws, map(RawMessage.value, raws)))
