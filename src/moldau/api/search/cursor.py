"""The cursor of a search: where it is in each partition, as opaque text that clients send back.

Nothing of it is trusted: it cannot name more than its sender could ask for anyway, which the rights
on the topic decide; but it must have the form that this module gave it.
"""

import base64
import binascii
import hashlib
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from moldau.api.search.merge import Row
from moldau.data.search.types import SearchWanted
from moldau.metadata.config_types import LONG_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.malformed import MALFORMED

PARTITIONS_MAX: Final = 256
"""Of one search: a cursor goes into a URL."""
_CHARS_MAX: Final = 32 * 1024
_VERSION: Final = 1
_HASH_BYTES: Final = 12
_LONG_MIN: Final = -LONG_MAX - 1


class _Cursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    topic_id: bytes
    asked: bytes
    """Hash of all that decides what is found."""
    rows: list[tuple[int, int, int, int | None]]


_decode: Final = msgspec.msgpack.Decoder(_Cursor).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def hash_of(wanted: SearchWanted, partitions: list[int] | None) -> bytes:
    """Of what a search is for; not of how many messages a page has, and how they are shown."""
    asked = _encode((wanted.newest, wanted.start, wanted.wanted, partitions))
    return hashlib.sha256(asked).digest()[:_HASH_BYTES]


def encode_cursor(topic_id: bytes, asked: bytes, rows: list[Row]) -> str:
    cursor = _Cursor(_VERSION, topic_id, asked, [(*row,) for row in rows])
    return base64.urlsafe_b64encode(_encode(cursor)).rstrip(b"=").decode()


def decode_cursor(
    text: str, topic_id: bytes, asked: bytes, partition_count: int, *, newest: bool
) -> list[Row]:
    """Raises RefusedError."""
    if not text.isascii() or len(text) > _CHARS_MAX:
        _refuse()
    try:
        padded = text.encode() + b"=" * (-len(text) % 4)
        cursor = _decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, *MALFORMED):
        _refuse()
    if cursor.version != _VERSION:
        _refuse()
    if cursor.topic_id != topic_id:
        _refuse("it is of another topic, or of a deleted one of this name")
    if cursor.asked != asked:
        _refuse("it is of a search with other filters, partitions, direction or start")
    rows = [Row(*row) for row in cursor.rows]
    if not 0 < len(rows) <= PARTITIONS_MAX:
        _refuse()
    last = -1
    for row in rows:
        low, high = (row.stop, row.position) if newest else (row.position, row.stop)
        if (
            not last < row.partition < partition_count
            or not 0 <= low < high <= LONG_MAX
            or not (row.reached is None or _LONG_MIN <= row.reached <= LONG_MAX)
        ):
            _refuse()
        last = row.partition
    return rows


def _refuse(why: str = "it is not one that a search returned") -> NoReturn:
    error = RefusedError(ErrorCode.INVALID_REQUEST, f"The cursor is not valid: {why}")
    error.hint = "repeat the parameters of the search that returned it, or begin without a cursor"
    raise error
