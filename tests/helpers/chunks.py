"""Chunks of encoded messages as bytes. A slice of a file is none of them."""

from collections.abc import Iterable

from moldau.model.slices import Chunk, FileSlice


def in_memory(chunk: Chunk | None) -> bytes:
    assert chunk is not None
    assert not isinstance(chunk, FileSlice)
    return bytes(chunk)


def joined(chunks: Iterable[Chunk]) -> bytes:
    return b"".join(map(in_memory, chunks))
