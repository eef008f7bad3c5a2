"""Messages of several partitions as JSON, for searches and live views."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Raw, Struct

from moldau.api.search.types import ABORT, COMMIT, Hit
from moldau.edge.http.record_json import RecordSelection, show
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record

VALUE_MAX: Final = 64 * 1024
"""Bytes of keys and values that are shown by default."""
VALUE_MAX_MAX: Final = 1024 * 1024

_INLINE_BYTES_MAX: Final = 64 * 1024
"""Larger lists are encoded in a thread, so that the event loop is not blocked."""
_UTF8_TAIL_MAX: Final = 3
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="show-messages")


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A field that does not match its encoding is null, with its bytes in `*_base64`."""

    partition: int
    offset: int
    timestamp: int
    key: Raw
    value: Raw
    headers: list[tuple[str, Raw]]
    value_bytes: int
    """The size of the whole value."""
    key_base64: str | None = None
    value_base64: str | None = None
    binary_headers: list[int] = []
    """Which of `headers` are not text, and in base64 although text was asked for."""
    is_cut: bool = False
    """Only the start of a longer key or value is shown, or not all headers."""
    kind: str | None = None
    """tombstone; commit or abort for a marker."""


async def show_hits(hits: Sequence[tuple[int, Hit]], selection: RecordSelection) -> list[Message]:
    if sum(hit.size for _, hit in hits) <= _INLINE_BYTES_MAX:
        return _show_all(hits, selection)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, _show_all, hits, selection)


def _show_all(hits: Sequence[tuple[int, Hit]], selection: RecordSelection) -> list[Message]:
    return [_show(partition, hit, selection) for partition, hit in hits]


def _show(partition: int, hit: Hit, selection: RecordSelection) -> Message:
    key, value = hit.key, hit.value
    if hit.is_cut:
        key = key and _whole_characters(key)
        value = value and _whole_characters(value)
    headers = [(name.decode("utf-8", "surrogateescape"), content) for name, content in hit.headers]
    record = Record(Offset(hit.offset), TimestampMs(hit.timestamp), key, value, headers)
    shown = show(record, selection)
    kind = {COMMIT: "commit", ABORT: "abort"}.get(hit.kind)
    if kind is None and value is None:
        kind = "tombstone"
    return Message(
        partition=partition,
        offset=hit.offset,
        timestamp=hit.timestamp,
        key=shown.key,
        value=shown.value,
        headers=shown.headers,
        value_bytes=hit.value_bytes,
        key_base64=shown.key_base64,
        value_base64=shown.value_base64,
        binary_headers=shown.binary_headers,
        is_cut=hit.is_cut,
        kind=kind,
    )


def _whole_characters(content: bytes) -> bytes:
    """Without a character of UTF-8 that is not complete at its end."""
    for back in range(1, min(_UTF8_TAIL_MAX, len(content)) + 1):
        byte = content[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content[:-back] if back < needed else content
        if byte < 0x80:
            break
    return content
