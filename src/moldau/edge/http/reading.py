"""Owns how records are shown in JSON, and which of them somebody asked for."""

import base64
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from moldau.records.record import Record

Encoding = Literal["text", "json", "base64"]


class RecordShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What cannot be shown as asked is null, and stands in base64 beside."""

    offset: int
    timestamp: int
    key: Raw
    value: Raw
    headers: list[tuple[str, Raw]]
    key_base64: str | None = None
    value_base64: str | None = None


class Chosen(NamedTuple):
    """What somebody asked for: how it is shown, and what is left out."""

    key_encoding: Encoding = "text"
    value_encoding: Encoding = "text"
    key: bytes | None = None
    """Only records with this key."""
    contains: bytes | None = None
    """Only records with this in their value."""

    def wants(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        return self.contains is None or (record.value is not None and self.contains in record.value)


_encode: Final = msgspec.json.Encoder().encode
_NULL: Final = Raw(b"null")


def show(record: Record, chosen: Chosen) -> RecordShown:
    key, key_base64 = _show_field(record.key, chosen.key_encoding)
    value, value_base64 = _show_field(record.value, chosen.value_encoding)
    headers = []
    for name, content in record.headers:
        shown, _ = _show_field(content, "text")
        if shown is _NULL and content is not None:
            shown, _ = _show_field(content, "base64")
        headers.append((name.encode("utf-8", "replace").decode(), shown))
    return RecordShown(
        offset=record.offset,
        timestamp=record.timestamp,
        key=key,
        value=value,
        headers=headers,
        key_base64=key_base64,
        value_base64=value_base64,
    )


def _show_field(content: bytes | None, encoding: Encoding) -> tuple[Raw, str | None]:
    """As JSON; or null, and what to give beside it."""
    if content is None:
        return _NULL, None
    try:
        if encoding == "text":
            return Raw(_encode(content.decode())), None
        if encoding == "json":
            # Read and written anew: bytes that only look like JSON would spoil the answer.
            return Raw(_encode(msgspec.json.decode(content))), None
    except (UnicodeError, msgspec.DecodeError, RecursionError):
        return _NULL, base64.b64encode(content).decode()
    return Raw(_encode(base64.b64encode(content).decode())), None
