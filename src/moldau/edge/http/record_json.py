"""Records as JSON, and the filters that select them."""

import asyncio
import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from moldau.records.record import Record

Encoding = Literal["text", "json", "base64"]
HeaderEncoding = Literal["text", "base64"]

_INLINE_BYTES_MAX: Final = 64 * 1024
"""Larger lists are encoded in a thread, so that the event loop is not blocked."""
# One thread: decoded JSON takes many times its size.
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="show")


class RecordShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field that does not match its encoding is null, with its bytes in `*_base64`."""

    offset: int
    timestamp: int
    key: Raw
    value: Raw
    headers: list[tuple[str, Raw]]
    key_base64: str | None = None
    value_base64: str | None = None
    binary_headers: list[int] = []
    """Which of `headers` are not text, and in base64 although text was asked for."""


class RecordSelection(NamedTuple):
    """How a client wants records encoded, and which ones."""

    key_encoding: Encoding = "text"
    value_encoding: Encoding = "text"
    header_encoding: HeaderEncoding = "text"
    key: bytes | None = None
    """Only records with this key."""
    contains: bytes | None = None
    """Only records whose value contains this."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Only records with all of these headers; None: with any value."""

    def matches(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.contains is not None and (
            record.value is None or self.contains not in record.value
        ):
            return False
        return all(
            any(
                name == wanted and (value is None or content == value)
                for name, content in record.headers
            )
            for wanted, value in self.headers
        )


_encode: Final = msgspec.json.Encoder().encode
_NULL: Final = Raw(b"null")


async def show_all(records: Sequence[Record], selection: RecordSelection) -> list[RecordShown]:
    size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
    if size <= _INLINE_BYTES_MAX:
        return _show_all(records, selection)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, _show_all, records, selection)


def _show_all(records: Sequence[Record], selection: RecordSelection) -> list[RecordShown]:
    return [show(record, selection) for record in records]


def show(record: Record, selection: RecordSelection) -> RecordShown:
    key, key_base64 = _show_field(record.key, selection.key_encoding)
    value, value_base64 = _show_field(record.value, selection.value_encoding)
    headers = []
    binary = []
    for at, (name, content) in enumerate(record.headers):
        shown, _ = _show_field(content, selection.header_encoding)
        if shown is _NULL and content is not None:
            shown, _ = _show_field(content, "base64")
            binary.append(at)
        headers.append((name.encode("utf-8", "replace").decode(), shown))
    return RecordShown(
        offset=record.offset,
        timestamp=record.timestamp,
        key=key,
        value=value,
        headers=headers,
        key_base64=key_base64,
        value_base64=value_base64,
        binary_headers=binary,
    )


def _show_field(content: bytes | None, encoding: Encoding) -> tuple[Raw, str | None]:
    """As JSON; or null and its base64."""
    if content is None:
        return _NULL, None
    try:
        if encoding == "text":
            return Raw(_encode(content.decode())), None
        if encoding == "json":
            # Decoded and encoded again: invalid JSON would break the response.
            return Raw(_encode(msgspec.json.decode(content))), None
    except (UnicodeError, msgspec.DecodeError, RecursionError):
        return _NULL, base64.b64encode(content).decode()
    return Raw(_encode(base64.b64encode(content).decode())), None
