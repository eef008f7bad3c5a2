"""Owns Message: what a consumer hands out. Reads librdkafka's message only where it is asked."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Message as RawMessage

from moldau.client.errors import InvalidArgumentError

FIELDS = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")


class Message:
    """One message of a partition. Attributes, or items of the same names: message["topic"]."""

    __slots__ = ("_raw",)

    _raw: RawMessage

    # Its types allow for None, and for headers as text, in what is sent and in events; what was
    # read has a place, and headers as bytes. A look at each would cost as much as the rest.

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
    def value(self) -> bytes | None:
        """The bytes; None is a tombstone, which deletes its key from a compacted topic."""
        return self._raw.value()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Pairs in their order; a name may come more than once."""
        return list(self._raw.headers() or ())  # type: ignore[arg-type]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return self._raw.timestamp()[1]

    @property
    def time(self) -> datetime:
        """The timestamp with its zone, UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def text(self) -> str:
        """The value as text. Raises InvalidArgumentError if it is no UTF-8."""
        try:
            return (self.value or b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"{self!r} is no text: {error}", hint="use .value"
            ) from error

    def json(self) -> Any:
        """The value read as JSON; None for a tombstone. Raises InvalidArgumentError."""
        value = self.value
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{self!r} is no JSON: {error}", hint="use .value"
            ) from error

    def __getitem__(self, name: str) -> Any:
        if name not in FIELDS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def keys(self) -> tuple[str, ...]:
        """The names for item access; so dict(message) works."""
        return FIELDS

    def __repr__(self) -> str:
        size = len(self.value) if self.value is not None else 0
        return f"<Message {self.topic}[{self.partition}]@{self.offset} {size} bytes>"


def wrap(raws: list[RawMessage]) -> list[Message]:
    """A message for each of librdkafka's. Without an __init__, which would take half the time."""
    messages = []
    for raw in raws:
        message = Message()
        message._raw = raw
        messages.append(message)
    return messages
