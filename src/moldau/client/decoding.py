"""Reads messages of either client: values as text or JSON, fields as items."""

import json
from typing import Any, Protocol

from moldau.client.errors import InvalidArgumentError


class MessageWithValue(Protocol):
    """A Kafka or queue message; its repr identifies it in errors."""

    @property
    def value(self) -> bytes | None: ...


def text_of(message: MessageWithValue) -> str:
    """Raises InvalidArgumentError if the value is not UTF-8."""
    try:
        return (message.value or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"the value of {message!r} is not UTF-8: {error}", hint="use .value"
        ) from error


def json_of(message: MessageWithValue) -> Any:
    """None for a tombstone. Raises InvalidArgumentError."""
    value = message.value
    if value is None:
        return None
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"the value of {message!r} is not JSON: {error}", hint="use .value"
        ) from error


def item_of(message: object, name: str, fields: tuple[str, ...]) -> Any:
    """The attribute of that name, if it is one of the fields. Raises KeyError."""
    if name not in fields:
        raise KeyError(name)
    return getattr(message, name)
