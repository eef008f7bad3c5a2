"""How a broker proves that it may join or return, over a connection that others may read.

The member sends a challenge. The broker proves that it knows a key: the secret of the cluster, or
that of a join token. The reply is encrypted under the same key and so proves that the member knows
it as well. No key is ever sent.

Of a token the cluster stores only a hash, and knowing the hash is not enough to join. As in
SCRAM, the proof is the key, masked with an HMAC under the hash: a member takes the mask off, and
compares the hash of what it finds.
"""

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
"""Of the cluster's secret, and of the secret part of a token."""
NONCE_BYTES: Final = 32
SEAL_NONCE_BYTES: Final = 12
_LABEL: Final = b"moldau join 1"
_PROOF_PURPOSE: Final = b"moldau join proof"
_SEAL_PURPOSE: Final = b"moldau join reply"
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_-]{32})")


class UnsealError(MoldauError):
    """A reply is not encrypted under the key, or was changed."""


class TokenText(NamedTuple):
    """A join token as people pass it on: `id.secret`."""

    id: str
    secret: bytes
    """Its text: what was drawn at random is the key, and how it was written does not matter."""

    def __repr__(self) -> str:
        return f"TokenText(id={self.id!r})"


def parse_token(text: str) -> TokenText:
    """Raises ValueError; the message does not contain the text."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a join token: it has the form ID.SECRET")
    return TokenText(match[1], match[2].encode())


def hash_token(secret: bytes) -> bytes:
    """What the cluster stores. The secret is random and long: no salt, no slow hash is needed."""
    return hashlib.sha256(secret).digest()


class Transcript(NamedTuple):
    """All that a proof covers."""

    token_id: str
    """Empty: the key is the secret of the cluster."""
    nonce: bytes
    """Chosen by the broker."""
    challenge: bytes
    """Chosen by the member."""
    request: bytes

    @property
    def content(self) -> bytes:
        # With their sizes: no two transcripts have the same bytes.
        parts = (self.token_id.encode(), self.nonce, self.challenge, self.request)
        return _LABEL + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def prove_secret(secret: bytes, transcript: Transcript) -> bytes:
    """Proof of the cluster's secret."""
    key = hmac.digest(secret, _PROOF_PURPOSE, "sha256")
    return hmac.digest(key, transcript.content, "sha256")


def is_secret_proof(secret: bytes, transcript: Transcript, proof: bytes) -> bool:
    return hmac.compare_digest(prove_secret(secret, transcript), proof)


def prove_token(secret: bytes, transcript: Transcript) -> bytes:
    """Proof of a token's secret."""
    return _masked(secret, hash_token(secret), transcript)


def secret_of_token(stored_hash: bytes, transcript: Transcript, proof: bytes) -> bytes | None:
    """The token's secret, if the proof is right."""
    if len(proof) != KEY_BYTES:
        return None
    secret = _masked(proof, stored_hash, transcript)
    return secret if hmac.compare_digest(hash_token(secret), stored_hash) else None


def _masked(key: bytes, stored_hash: bytes, transcript: Transcript) -> bytes:
    mask = hmac.digest(stored_hash, transcript.content, "sha256")
    return bytes(a ^ b for a, b in zip(key, mask, strict=True))


def seal(key: bytes, transcript: Transcript, content: bytes, nonce: bytes) -> bytes:
    """Encrypt a reply for the broker that knows the key."""
    sealed: bytes = _cipher(key, transcript).encrypt(nonce, content, transcript.content)
    return nonce + sealed


def unseal(key: bytes, transcript: Transcript, sealed: bytes) -> bytes:
    """Raises UnsealError."""
    from cryptography.exceptions import InvalidTag

    nonce, encrypted = sealed[:SEAL_NONCE_BYTES], sealed[SEAL_NONCE_BYTES:]
    try:
        content: bytes = _cipher(key, transcript).decrypt(nonce, encrypted, transcript.content)
    except (InvalidTag, ValueError):
        raise UnsealError("the reply is not encrypted under the key of this broker") from None
    return content


def _cipher(key: bytes, transcript: Transcript) -> "AESGCM":
    """AES-256-GCM under a key for this reply alone."""
    # Imported here: a broker that runs needs it rarely, and its memory is saved until then.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    salt = hashlib.sha256(transcript.content).digest()
    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_SEAL_PURPOSE)
    return AESGCM(derived.derive(key))
