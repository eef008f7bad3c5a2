"""What Kafka and queue messages share: the value as text or JSON, and fields as items."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

from moldau.client.errors import InvalidArgumentError


class _Message(Protocol):
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


class MessageContent:
    """A base class of messages; their repr identifies them in errors."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]]

    @property
    def time(self: _Message) -> datetime:
        """The timestamp as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def text(self: _Message) -> str:
        """The value as text. Raises InvalidArgumentError if it is not UTF-8."""
        try:
            return (self.value or b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"the value of {self!r} is not UTF-8: {error}", hint="use .value"
            ) from error

    def json(self: _Message) -> Any:
        """The value parsed as JSON; None for a tombstone. Raises InvalidArgumentError."""
        value = self.value
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise InvalidArgumentError(
                f"the value of {self!r} is not JSON: {error}", hint="use .value"
            ) from error

    def __getitem__(self, name: str) -> Any:
        if name not in self.FIELDS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.FIELDS)

    def keys(self) -> tuple[str, ...]:
        """The names for item access, so that dict(message) works."""
        return self.FIELDS
