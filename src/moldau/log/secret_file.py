"""The file `cluster.secret` of a data directory: what the brokers of a cluster prove to each other.

One line: a mark, 64 hexadecimal digits, and their checksum. While the secret is changed, a second
line has the earlier one. Only its owner can read it.
"""

import binascii
from typing import Final

from crc32c import crc32c

from moldau.log.filesystem import Files
from moldau.model.errors import CorruptionError
from moldau.model.layout import SECRET_FILE

SECRET_BYTES: Final = 32
SECRET_MARK: Final = b"moldau-cluster-secret-1"


class ClusterSecret:
    """A secret that no log, error or repr shows by accident."""

    __slots__ = ("earlier", "value")

    def __init__(self, value: bytes, earlier: bytes | None = None) -> None:
        self.value = value
        self.earlier = earlier
        """Still accepted, while brokers get the new one; None otherwise."""

    def __repr__(self) -> str:
        return "ClusterSecret(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSecret):
            return NotImplemented
        return (self.value, self.earlier) == (other.value, other.earlier)

    def __hash__(self) -> int:
        return hash((self.value, self.earlier))


def encode_secret(secret: ClusterSecret) -> bytes:
    known = (secret.value,) if secret.earlier is None else (secret.value, secret.earlier)
    return b"".join(
        b"%s %s %08x\n" % (SECRET_MARK, one.hex().encode(), crc32c(one)) for one in known
    )


def decode_secret(content: bytes) -> ClusterSecret:
    """Raises CorruptionError, whose text does not contain the content."""
    found = [_decode_line(line) for line in content.splitlines() if line.strip()]
    match found:
        case [bytes(value)]:
            return ClusterSecret(value)
        case [bytes(value), bytes(earlier)]:
            return ClusterSecret(value, earlier)
    raise CorruptionError(
        f"{SECRET_FILE} cannot be read: it is damaged; copy the file from the data directory of "
        "another broker of the cluster, or from a backup"
    )


def _decode_line(line: bytes) -> bytes | None:
    parts = line.split()
    if len(parts) != 3 or parts[0] != SECRET_MARK:
        return None
    try:
        secret = binascii.unhexlify(parts[1])
    except binascii.Error:
        return None
    is_whole = len(secret) == SECRET_BYTES and parts[2] == b"%08x" % crc32c(secret)
    return secret if is_whole else None


def read_secret(files: Files) -> ClusterSecret | None:
    """None if there is none. Raises CorruptionError."""
    return decode_secret(files.read(SECRET_FILE)) if files.exists(SECRET_FILE) else None


def write_secret(files: Files, secret: ClusterSecret) -> None:
    """Durable when it returns."""
    files.replace(SECRET_FILE, encode_secret(secret), is_private=True)
