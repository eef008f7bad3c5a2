"""Unsigned varints of flexible versions: at most five bytes, 32 bits."""

from typing import Final

from moldau.model.errors import PeerProtocolError

_UNSIGNED_MAX: Final = 0xFFFFFFFF


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it; IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise PeerProtocolError("a varint is longer than five bytes")
    if value > _UNSIGNED_MAX:
        raise PeerProtocolError("a varint is larger than 32 bits")
    return value, position


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value > _UNSIGNED_MAX:
        raise ValueError(f"{value} does not fit a varint of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tags_end(data: memoryview, position: int) -> int:
    """Skip a section of tagged fields; returns the position after it."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > len(data):
            raise PeerProtocolError("a tagged field is longer than the message")
    return position
