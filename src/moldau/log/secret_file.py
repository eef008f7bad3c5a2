"""The file `cluster.secret` of a data directory: what the brokers of a cluster prove to each other.

One line: a mark, 64 hexadecimal digits, and their checksum. Only its owner can read it.
"""

import binascii
from typing import Final

from crc32c import crc32c

from moldau.log.filesystem import Files
from moldau.model.errors import CorruptionError
from moldau.model.layout import SECRET_FILE

SECRET_BYTES: Final = 32
_MARK: Final = b"moldau-cluster-secret-1"


def encode_secret(secret: bytes) -> bytes:
    return b"%s %s %08x\n" % (_MARK, secret.hex().encode(), crc32c(secret))


def decode_secret(content: bytes) -> bytes:
    """Raises CorruptionError, whose text does not contain the content."""
    parts = content.split()
    if len(parts) == 3 and parts[0] == _MARK:
        try:
            secret = binascii.unhexlify(parts[1])
        except binascii.Error:
            secret = b""
        if len(secret) == SECRET_BYTES and parts[2] == b"%08x" % crc32c(secret):
            return secret
    raise CorruptionError(
        f"{SECRET_FILE} cannot be read: it is damaged; copy the file from the data directory of "
        "another broker of the cluster, or from a backup"
    )


def read_secret(files: Files) -> bytes | None:
    """None if there is none. Raises CorruptionError."""
    return decode_secret(files.read(SECRET_FILE)) if files.exists(SECRET_FILE) else None


def write_secret(files: Files, secret: bytes) -> None:
    """Durable when it returns."""
    files.replace(SECRET_FILE, encode_secret(secret), is_private=True)
