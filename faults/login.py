"""How clients of a secured run connect: the properties of their user, TLS, SCRAM by hand.

The harness names a file with librdkafka's properties in an environment variable; without it,
clients speak plain text. SCRAM is written out here for the reader that imports nothing of the
broker.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import struct
from functools import cache
from pathlib import Path
from typing import Any, Final

SECURITY_VARIABLE: Final = "FAULTS_CLIENT_SECURITY"
_HANDSHAKE, _AUTHENTICATE = 17, 36
_ANSWER_BYTES_MAX: Final = 64 * 1024


@cache
def properties() -> dict[str, Any]:
    """Security properties of a Kafka client; empty for plain text."""
    path = os.environ.get(SECURITY_VARIABLE)
    found: dict[str, Any] = json.loads(Path(path).read_text()) if path else {}
    return found


@cache
def _context(authorities: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authorities)


def secure(connection: socket.socket, host: str) -> socket.socket:
    """The same connection with TLS and a login, if clients need them. Raises OSError."""
    given = properties()
    if not given:
        return connection
    wrapped = _context(given["ssl.ca.location"]).wrap_socket(connection, server_hostname=host)
    try:
        _log_in(wrapped, given["sasl.mechanism"], given["sasl.username"], given["sasl.password"])
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _log_in(connection: socket.socket, mechanism: str, user: str, password: str) -> None:
    """RFC 5802, with SHA-256 or SHA-512."""
    _ask(connection, _HANDSHAKE, _text(mechanism))
    nonce = secrets.token_urlsafe(18)
    bare = f"n={user},r={nonce}"
    first = _authenticate(connection, f"n,,{bare}")
    told = dict(part.split("=", 1) for part in first.split(","))
    if not told["r"].startswith(nonce):
        raise ConnectionError("the broker answered with another nonce")
    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salt = base64.b64decode(told["s"])
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, int(told["i"]))
    without_proof = f"c=biws,r={told['r']}"
    signed = f"{bare},{first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    last = _authenticate(connection, f"{without_proof},p={base64.b64encode(proof).decode()}")
    server_key = hmac.digest(salted, b"Server Key", name)
    expected = base64.b64encode(hmac.digest(server_key, signed, name)).decode()
    if last != f"v={expected}":
        raise ConnectionError("the broker does not know the password")


def _authenticate(connection: socket.socket, message: str) -> str:
    data = message.encode()
    answer = _ask(connection, _AUTHENTICATE, struct.pack(">i", len(data)) + data)
    # The error's text, which may be null, then the message.
    (length,) = struct.unpack_from(">h", answer, 2)
    position = 4 + max(0, length)
    (size,) = struct.unpack_from(">i", answer, position)
    return answer[position + 4 : position + 4 + size].decode()


def _ask(connection: socket.socket, api: int, body: bytes) -> bytes:
    """The answer without its correlation. Raises ConnectionError for an error in it."""
    request = struct.pack(">hhi", api, 1, 1) + _text("raw") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    if not 6 <= size <= _ANSWER_BYTES_MAX:
        raise ConnectionError(f"an answer of {size} bytes")
    answer = _receive(connection, size)[4:]
    (code,) = struct.unpack_from(">h", answer)
    if code:
        raise ConnectionError(f"the login was refused with error {code}")
    return answer


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data
