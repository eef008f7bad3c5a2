"""Proofs that a broker knows the secret of its cluster, without sending it.

A proof is an HMAC-SHA256 over a label and the messages exchanged so far. Each message has a label
of its own, so that no proof of one side or step counts as one of another (reflection).
"""

import hmac
from collections.abc import Callable
from enum import Enum
from typing import Final

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
_PURPOSE: Final = b"moldau peers"
"""The secret has other uses; the key derived for this one is of no use for them."""


class Label(Enum):
    """Which message a proof belongs to. The same in all versions of the protocol."""

    HELLO = b"hello of the caller"
    CHALLENGE = b"challenge of the listener"
    PROOF = b"proof of the caller"
    RESPONSE = b"response of the listener"


class PeerSecret:
    """The key of one cluster for connections between its brokers."""

    __slots__ = ("_key", "_random_bytes", "earlier")

    def __init__(
        self,
        secret: bytes,
        random_bytes: Callable[[int], bytes],
        earlier: "PeerSecret | None" = None,
    ) -> None:
        """`random_bytes` must be unpredictable: `secrets.token_bytes`, but in the simulator."""
        self._key = hmac.digest(secret, _PURPOSE, "sha256")
        self._random_bytes = random_bytes
        self.earlier = earlier
        """Of brokers that do not have the new secret yet."""

    def __repr__(self) -> str:
        return "PeerSecret(…)"

    def nonce(self) -> bytes:
        return self._random_bytes(NONCE_BYTES)

    def prove(self, label: Label, *messages: bytes) -> bytes:
        """The proof of a message, given with all before it on this connection."""
        # With their sizes: no two lists of messages have the same proof.
        sized = (len(message).to_bytes(4, "big") + message for message in messages)
        return hmac.digest(self._key, label.value + b"\0" + b"".join(sized), "sha256")

    def is_proof(self, proof: bytes, label: Label, *messages: bytes) -> bool:
        return hmac.compare_digest(proof, self.prove(label, *messages))
