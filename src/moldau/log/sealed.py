"""Owns the frame of small checksummed files: four bytes of magic, a CRC32C, the payload."""

import struct

from crc32c import crc32c

from moldau.model.errors import CorruptionError

_FRAME = struct.Struct(">4sI")


def seal(magic: bytes, payload: bytes) -> bytes:
    """The payload in its frame, ready for Files.replace."""
    return _FRAME.pack(magic, crc32c(magic + payload)) + payload


def unseal(magic: bytes, data: bytes, path: str, advice: str) -> bytes:
    """The payload, once it is proved whole. `advice` ends the error: what a person can do."""
    if len(data) < _FRAME.size:
        raise CorruptionError(f"{path}: {len(data)} bytes are too few. {advice}")
    found, crc = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if found != magic:
        raise CorruptionError(f"{path}: begins with {found!r} and not {magic!r}. {advice}")
    if crc32c(magic + payload) != crc:
        raise CorruptionError(f"{path}: the checksum does not match. {advice}")
    return payload
