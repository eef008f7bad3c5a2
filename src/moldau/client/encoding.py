"""Encodes values, keys, headers and timestamps of an application, and rejects invalid ones."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from moldau.client.errors import InvalidArgumentError

Key = bytes | str | None
# Any, not object: to a type checker, dict[str, int] is incompatible with dict[str, object].
Value = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | None
Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]

PLAIN_TYPES = frozenset({bytes, str, type(None)})
"""Types that librdkafka accepts unchanged; text as UTF-8."""


def encode_value(value: object) -> bytes | str | None:
    """Bytes and text unchanged, a dict or list as compact JSON, None as a tombstone."""
    if value is None or isinstance(value, bytes | str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict | list):
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"the value cannot be encoded as JSON: {error}",
                hint="send plain dicts, lists, text and numbers, or bytes that you have encoded",
            ) from error
        return text.encode("utf-8", "surrogatepass")
    raise InvalidArgumentError(
        f"a value of type {type(value).__name__} cannot be sent",
        hint="send bytes, str, dict, list or None; a number as str(number)",
    )


def encode_key(key: object) -> bytes | str | None:
    """Bytes and text only: a key decides the partition, so its bytes must be obvious."""
    if key is None or isinstance(key, bytes | str):
        return key
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    raise InvalidArgumentError(
        f"a key of type {type(key).__name__} cannot be sent",
        hint="send bytes, str or None; a number as str(number)",
    )


def encode_timestamp(timestamp: int | datetime) -> int:
    """Milliseconds since 1970. A datetime without a time zone is local time, as in Python."""
    if isinstance(timestamp, datetime):
        timestamp = int(timestamp.timestamp() * 1000)
    # librdkafka interprets 0 as "now", and would silently use another timestamp.
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp <= 0:
        raise InvalidArgumentError(
            f"invalid timestamp {timestamp!r}", hint="milliseconds since 1970, or a datetime"
        )
    return timestamp


def encode_headers(headers: Headers) -> list[tuple[str, bytes | str | None]]:
    """Pairs in order; a name may occur more than once."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked: list[tuple[str, bytes | str | None]] = []
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidArgumentError(
                f"invalid header {pair!r}", hint='write headers={"name": "value"} or pairs'
            )
        name, value = pair
        if value is not None and not isinstance(value, bytes | str):
            raise InvalidArgumentError(
                f"header {name} has a value of type {type(value).__name__}",
                hint="send bytes, str or None; a number as str(number)",
            )
        checked.append((name, value))
    return checked
