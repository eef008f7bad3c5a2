"""The handshake on a connection between brokers: each proves that it knows the cluster's secret.

    hello      magic, version, sender's id, target's id, the sender's registration epoch,
               cluster id, sender's incarnation, nonce
    challenge  magic, version, nonce
    proof
    response   magic, version, accepted or not, and why not

Each message ends with a proof over itself and all messages before it (`secret.py`). The caller
sends hello and proof, the listener the others:

- An unknown client gets no answer: a hello without the right proof closes the connection.
- A hello that was recorded and is sent again gets a challenge, which its sender cannot answer,
  because the nonce in it is new.
- A listener that does not know the secret cannot make a challenge with the caller's new nonce.

The incarnation is the id of the sender's data directory: a broker that returns with another disk
counts as another broker, even with the same id. The registration epoch counts the sender's
registrations in the cluster: a lower one comes from a process that was replaced.
"""

import struct
from typing import Final, NamedTuple

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId
from moldau.net.peers.secret import NONCE_BYTES, PROOF_BYTES, Label, PeerSecret

PROTOCOL_VERSION: Final = 3
"""Version 2 added log ids to append responses and votes; version 3 the proofs of the secret. These
must stay as they are, so that brokers of different versions can say that they are."""
PROTOCOL_VERSION_MIN: Final = 3
"""The oldest that this version speaks. Both sides learn the version of the other one, and the newer
one speaks that of the older one: so brokers of two neighbouring releases work together."""
PROTOCOL_VERSION_NEXT: Final = PROTOCOL_VERSION + 1
"""Of the next release, whose brokers are let in: they speak our version."""
_SPOKEN: Final = f"versions {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}"
HANDSHAKE_BYTES_MAX: Final = 2048
_MAGIC: Final = b"MoPr"
_HELLO: Final = struct.Struct(">4sHiiq")
_CHALLENGE: Final = struct.Struct(f">4sH{NONCE_BYTES}s")
_RESPONSE: Final = struct.Struct(">4sHB")
_LENGTH: Final = struct.Struct(">H")
_TEXT_BYTES_MAX: Final = 512


class UnprovenPeerError(PeerProtocolError):
    """The other side does not prove that it knows the secret of this cluster."""


class Hello(NamedTuple):
    """The sender and its intended target."""

    cluster_id: str
    sender: BrokerId
    incarnation: str
    target: BrokerId
    epoch: int = 0
    """Of the sender's registration in the cluster; 0 before the first."""
    version: int = PROTOCOL_VERSION


class HelloResponse(NamedTuple):
    """Empty reason: accepted."""

    reason: str
    version: int = PROTOCOL_VERSION


class CallerHandshake:
    """The side that connects. The methods in their order, each with the message received."""

    def __init__(self, secret: PeerSecret, hello: Hello) -> None:
        self._secret = secret
        self._said = [_signed(secret, Label.HELLO, [], encode_hello(hello) + secret.nonce())]

    @property
    def hello(self) -> bytes:
        return self._said[0]

    def prove(self, challenge: bytes) -> bytes:
        """The answer to a challenge. Raises PeerProtocolError, also if the listener does not know
        the secret."""
        _verified(self._secret, Label.CHALLENGE, self._said, challenge)
        version = decode_challenge(challenge)
        if version < PROTOCOL_VERSION_MIN:
            raise PeerProtocolError(
                f"the server speaks protocol version {version}, and this broker {_SPOKEN}"
            )
        self._said += [challenge, _signed(self._secret, Label.PROOF, [*self._said, challenge], b"")]
        return self._said[-1]

    def read_response(self, response: bytes) -> HelloResponse:
        """Raises PeerProtocolError."""
        return decode_hello_response(_verified(self._secret, Label.RESPONSE, self._said, response))


class ListenerHandshake:
    """The side that is called. The methods in their order, each with the message received."""

    def __init__(self, secret: PeerSecret) -> None:
        self._secret = secret
        self._said: list[bytes] = []
        self.hello: Hello | None = None
        """What the caller says of itself; to be used once `check` has returned."""

    def challenge(self, hello: bytes) -> bytes:
        """Raises PeerProtocolError: the caller must get no answer."""
        if self._secret.earlier is not None and not _is_proven(self._secret, hello):
            # The caller may have the earlier one. All that follows is proved by the same.
            self._secret = self._secret.earlier
        body = _verified(self._secret, Label.HELLO, [], hello)
        if len(body) < NONCE_BYTES:
            raise PeerProtocolError("hello without a nonce")
        self.hello = decode_hello(memoryview(body)[:-NONCE_BYTES])
        challenge = _CHALLENGE.pack(_MAGIC, PROTOCOL_VERSION, self._secret.nonce())
        self._said = [hello, _signed(self._secret, Label.CHALLENGE, [hello], challenge)]
        return self._said[-1]

    def check(self, proof: bytes) -> Hello:
        """The caller, which is a broker of this cluster. Raises PeerProtocolError."""
        if self.hello is None:
            raise PeerProtocolError("a proof before its hello")
        _verified(self._secret, Label.PROOF, self._said, proof)
        self._said.append(proof)
        return self.hello

    def response(self, reason: str) -> bytes:
        """Empty reason: accepted."""
        body = encode_hello_response(HelloResponse(reason))
        return _signed(self._secret, Label.RESPONSE, self._said, body)


def _signed(secret: PeerSecret, label: Label, before: list[bytes], body: bytes) -> bytes:
    return body + secret.prove(label, *before, body)


def _is_proven(secret: PeerSecret, hello: bytes) -> bool:
    return secret.is_proof(hello[-PROOF_BYTES:], Label.HELLO, hello[:-PROOF_BYTES])


def _verified(secret: PeerSecret, label: Label, before: list[bytes], message: bytes) -> bytes:
    """The message without its proof. Raises UnprovenPeerError."""
    body, proof = message[:-PROOF_BYTES], message[-PROOF_BYTES:]
    if not secret.is_proof(proof, label, *before, body):
        raise UnprovenPeerError("it does not know the secret of this cluster")
    return body


def encode_hello(hello: Hello) -> bytes:
    head = _HELLO.pack(_MAGIC, hello.version, hello.sender, hello.target, hello.epoch)
    return head + _text(hello.cluster_id) + _text(hello.incarnation)


def decode_hello(body: memoryview) -> Hello:
    """Raises PeerProtocolError. A later version may add fields at the end."""
    try:
        magic, version, sender, target, epoch = _HELLO.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"truncated hello of {len(body)} bytes") from None
    if magic != _MAGIC:
        raise PeerProtocolError("the sender does not speak the peer protocol")
    cluster_id, position = _read_text(body, _HELLO.size)
    incarnation, _ = _read_text(body, position)
    return Hello(cluster_id, BrokerId(sender), incarnation, BrokerId(target), epoch, version)


def decode_challenge(body: bytes) -> int:
    """The listener's version. Raises PeerProtocolError."""
    try:
        magic, version, _ = _CHALLENGE.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"truncated challenge of {len(body)} bytes") from None
    if magic != _MAGIC:
        raise PeerProtocolError("the server does not speak the peer protocol")
    return int(version)


def encode_hello_response(response: HelloResponse) -> bytes:
    head = _RESPONSE.pack(_MAGIC, response.version, 0 if not response.reason else 1)
    return head + _text(response.reason)


def decode_hello_response(body: bytes | memoryview) -> HelloResponse:
    """Raises PeerProtocolError."""
    try:
        magic, version, status = _RESPONSE.unpack_from(body)
    except struct.error:
        raise PeerProtocolError(f"truncated hello response of {len(body)} bytes") from None
    if magic != _MAGIC or status > 1:
        raise PeerProtocolError("the server does not speak the peer protocol")
    reason, _ = _read_text(memoryview(body), _RESPONSE.size)
    if status and not reason:
        reason = "no reason given"
    return HelloResponse(reason if status else "", version)


def _text(text: str) -> bytes:
    data = text.encode()[:_TEXT_BYTES_MAX]
    return _LENGTH.pack(len(data)) + data


def _read_text(body: memoryview, position: int) -> tuple[str, int]:
    try:
        (size,) = _LENGTH.unpack_from(body, position)
    except struct.error:
        raise PeerProtocolError("truncated handshake") from None
    start = position + _LENGTH.size
    if size > _TEXT_BYTES_MAX or start + size > len(body):
        raise PeerProtocolError(f"text of {size} bytes in a handshake of {len(body)} bytes")
    try:
        return bytes(body[start : start + size]).decode(), start + size
    except UnicodeDecodeError:
        raise PeerProtocolError("invalid UTF-8 in a handshake") from None
