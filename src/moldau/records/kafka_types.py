"""Kafka's primitive types, as the records of internal topics encode them.

Older formats use fixed-size lengths. Flexible ones use varints, and tagged fields may follow.
"""

import struct
from collections.abc import Iterable, Sequence

from moldau.model.errors import CorruptionError


def string_bytes(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def blob_bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class Reader:
    """Reads Kafka's primitive types; every length is checked against the remaining bytes."""

    __slots__ = ("_data", "_position", "flexible", "what")

    def __init__(self, data: bytes, what: str = "group record") -> None:
        self._data = data
        self._position = 0
        self.flexible = False
        self.what = what
        """For errors."""

    def version(self, what: str, most: int) -> int:
        version = self.int16()
        if not 0 <= version <= most:
            raise CorruptionError(f"{what} has version {version}, this version reads up to {most}")
        return version

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptionError(f"{self.what} has a null string where one is required")
        return text

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"{self.what} has text that is not UTF-8: {error}") from error

    def blob(self) -> bytes:
        return self._take(self._varint() - 1 if self.flexible else self.int32())

    def nullable_blob(self) -> bytes | None:
        length = self._varint() - 1 if self.flexible else self.int32()
        return None if length == -1 else self._take(length)

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def array_length(self, *, nullable: bool = False) -> int:
        length = self._varint() - 1 if self.flexible else self.int32()
        if nullable and length == -1:
            return 0
        # An entry has at least one byte, so this bounds the loop.
        if not 0 <= length <= len(self._data) - self._position:
            raise CorruptionError(f"{self.what} has an invalid array length {length}")
        return length

    def uuid(self) -> bytes:
        return self._take(16)

    def tagged_fields(self) -> dict[int, bytes]:
        """Empty in formats that are not flexible."""
        if not self.flexible:
            return {}
        return {self._varint(): self._take(self._varint()) for _ in range(self._varint())}

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptionError(f"{self.what} has an invalid varint")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptionError(f"{self.what} is truncated")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    return compact_bytes(text.encode())


def compact_bytes(data: bytes) -> bytes:
    return varint_bytes(len(data) + 1) + data


def tagged_fields_bytes(fields: Sequence[tuple[int, bytes]]) -> bytes:
    encoded = [varint_bytes(tag) + varint_bytes(len(data)) + data for tag, data in fields]
    return varint_bytes(len(fields)) + b"".join(encoded)


def compact_array(items: Iterable[bytes]) -> bytes:
    """Each item is encoded already."""
    encoded = list(items)
    return varint_bytes(len(encoded) + 1) + b"".join(encoded)
