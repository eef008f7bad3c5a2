"""Inputs that consist of several parts, each with a length of two bytes before it.

A length beyond the end means the rest, so every input has a meaning, and a mutation of one part
does not move the others.
"""

from collections.abc import Iterable

from moldau.model.slices import Chunk, FileSlice


def join(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def split(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 2], "big")
        position += 2
        parts.append(data[position : position + size])
        position += size
    return parts


def pair(data: bytes) -> tuple[bytes, bytes]:
    """The first two parts."""
    parts = [*split(data), b"", b""]
    return parts[0], parts[1]


def in_memory(chunks: Iterable[Chunk]) -> bytes:
    """Encoded messages: no target sends files."""
    joined = bytearray()
    for chunk in chunks:
        if isinstance(chunk, FileSlice):
            raise TypeError("a message of a seed has a slice of a file")
        joined += chunk
    return bytes(joined)
