"""Owns what producers put before a value: headers of Confluent's serialisers and of Avro's own.

Confluent: a zero, the id of the schema that the value was written with in four bytes, and for
Protobuf the place of the message in its file. Single-object: two fixed bytes and the fingerprint of
the schema, which has to be that of the one given.
"""

from enum import StrEnum
from typing import Final

CONFLUENT_BYTES: Final = 5
_SINGLE_MARK: Final = b"\xc3\x01"
_SINGLE_BYTES: Final = 10
_VARINT_BYTES_MAX: Final = 5


class Framing(StrEnum):
    NONE = "none"
    CONFLUENT = "confluent"
    SINGLE_OBJECT = "single-object"


class BadRowError(ValueError):
    """A value that cannot be decoded; the text is the reason that goes with the row."""


def split_confluent(value: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows."""
    if len(value) < CONFLUENT_BYTES or value[0] != 0:
        raise BadRowError("no header of Confluent's wire format before the value")
    return int.from_bytes(value[1:CONFLUENT_BYTES], "big"), value[CONFLUENT_BYTES:]


def without_fingerprint(value: bytes, fingerprint: bytes) -> bytes:
    if value[:2] != _SINGLE_MARK or len(value) < _SINGLE_BYTES:
        raise BadRowError("no header of Avro's single-object encoding before the value")
    if value[2:_SINGLE_BYTES] != fingerprint:
        raise BadRowError(
            f"written with another schema: fingerprint {value[2:_SINGLE_BYTES].hex()}, not "
            f"{fingerprint.hex()}"
        )
    return value[_SINGLE_BYTES:]


def split_indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """Which message of its file it is, as Confluent's Protobuf serialiser says it; what follows."""
    count, at = _zigzag(value, 0)
    found = []
    if not 0 <= count <= len(value):
        raise BadRowError("a broken list of message indexes before the value")
    for _ in range(count):
        number, at = _zigzag(value, at)
        found.append(number)
    return tuple(found or (0,)), value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for length in range(_VARINT_BYTES_MAX):
        if at + length >= len(value):
            break
        byte = value[at + length]
        number |= (byte & 0x7F) << (7 * length)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + length + 1
    raise BadRowError("a broken list of message indexes before the value")
