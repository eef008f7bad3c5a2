"""The format of small checksummed files: four bytes of magic, a CRC32C, the payload."""

import struct

from crc32c import crc32c

from moldau.model.errors import CorruptionError

ADVICE = "Nothing was changed; restore the file from a backup, or the partition from a replica."
_FRAME = struct.Struct(">4sI")


def seal(magic: bytes, payload: bytes) -> bytes:
    """The content of the file, for Files.replace."""
    return _FRAME.pack(magic, crc32c(magic + payload)) + payload


def unseal(magic: bytes, data: bytes, path: str) -> bytes:
    """The payload, after its checksum was verified. Raises CorruptionError."""
    if len(data) < _FRAME.size:
        raise CorruptionError(f"{path}: too short ({len(data)} bytes). {ADVICE}")
    found, crc = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if found != magic:
        raise CorruptionError(f"{path}: begins with {found!r} instead of {magic!r}. {ADVICE}")
    if crc32c(magic + payload) != crc:
        raise CorruptionError(f"{path}: checksum mismatch. {ADVICE}")
    return payload
