"""Lets brokers join and return that prove that they may: by the cluster's secret, or by a token.

The reply has the whole metadata and the secret in it, and is encrypted under the key that was
proved. So is a refusal that follows a proof: a broker that was removed ends because of it, and must
know that its cluster says so. `security/join_proof.py` has the proofs.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from moldau.log.secret_file import ClusterSecret
from moldau.metadata.security import JOIN_TOKEN_REFUSED, JoinToken
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import (
    JoinChallenge,
    JoinGrant,
    JoinRefusal,
    JoinReply,
    JoinRequest,
    ProvenJoinRequest,
    SealedJoinReply,
)
from moldau.security.join_proof import (
    KEY_BYTES,
    SEAL_NONCE_BYTES,
    Transcript,
    is_secret_proof,
    seal,
    secret_of_token,
)

log = logging.getLogger(__name__)

CHALLENGE_SECONDS_MAX: Final = 60.0
_TIME_BYTES: Final = 8
_CHANCE_BYTES: Final = 16
_CONTENT_BYTES: Final = _TIME_BYTES + _CHANCE_BYTES
_USED_MAX: Final = 4096
"""Challenges that were answered rightly within their time; unknown clients add none."""
_WARN_SECONDS: Final = 10.0
_request_of: Final = msgspec.json.Decoder(JoinRequest).decode


Join = Callable[[JoinRequest, str], Awaitable[JoinReply]]
"""Registers a broker; with the id of the token that it proved, or an empty text."""


class DecidedJoin(NamedTuple):
    reply: SealedJoinReply
    broker_id: int | None = None
    """Of a broker that was let in."""
    refusal: str = ""
    """Why another was not; only the broker can read it in the reply."""


class JoinService:
    def __init__(
        self,
        *,
        join: Join,
        tokens: Callable[[], Mapping[str, JoinToken]],
        secret: ClusterSecret,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        local_secret_file: str = "",
        on_return: Callable[[JoinRequest], None] = lambda _: None,
    ) -> None:
        """`local_secret_file`: for brokers on this machine, if no others can ask. `on_return` gets
        the request of a broker that proved the secret, before it is registered."""
        self._join = join
        self._tokens = tokens
        self._secret = secret
        self._clock = clock
        self._random_bytes = random_bytes
        self._local_secret_file = local_secret_file
        self._on_return = on_return
        self._key = random_bytes(KEY_BYTES)
        """Of this process: signs challenges, so that none must be remembered before its use."""
        self._used: dict[bytes, float] = {}
        """Challenges that must not be used again, with the time they were made."""
        self._warned_at = float("-inf")

    def challenge(self) -> JoinChallenge:
        made = int(self._clock.monotonic() * 1000).to_bytes(_TIME_BYTES, "big")
        content = made + self._random_bytes(_CHANCE_BYTES)
        return JoinChallenge(
            challenge=content + self._sign(content), secret_file=self._local_secret_file
        )

    async def join(self, proven: ProvenJoinRequest) -> DecidedJoin:
        """Raises RefusedError: without a proof, or if it can be tried again later."""
        made_at = self._check_challenge(proven.challenge)
        transcript = Transcript(proven.token_id, proven.nonce, proven.challenge, proven.request)
        key = self._proven_key(transcript, proven.proof)
        self._used[proven.challenge] = made_at
        content: JoinGrant | JoinRefusal
        broker_id, refusal = None, ""
        try:
            reply = await self._register(proven)
            # Who proves the old secret learns no new one: it may have been stolen.
            secret = ClusterSecret(key) if key == self._secret.earlier else self._secret
            content = JoinGrant(reply=reply, secret=secret.value, earlier_secret=secret.earlier)
            broker_id = reply.broker_id
        except RefusedError as error:
            if error.code.is_unavailable:
                raise
            refusal = str(error)
            content = JoinRefusal(code=error.code, message=refusal)
        nonce = self._random_bytes(SEAL_NONCE_BYTES)
        sealed = seal(key, transcript, msgspec.msgpack.encode(content), nonce)
        return DecidedJoin(SealedJoinReply(sealed=sealed), broker_id, refusal)

    async def _register(self, proven: ProvenJoinRequest) -> JoinReply:
        """Raises RefusedError."""
        try:
            request = _request_of(proven.request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"the request: {error}") from None
        if proven.token_id and request.is_query:
            # It would use no token up, and so give the secret for one that is used or expired.
            raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, JOIN_TOKEN_REFUSED)
        if not proven.token_id and not request.is_query:
            self._on_return(request)
        return await self._join(request, proven.token_id)

    def _proven_key(self, transcript: Transcript, proof: bytes) -> bytes:
        """The key that the broker knows. Raises RefusedError."""
        if not transcript.token_id:
            for known in (self._secret.value, self._secret.earlier):
                if known is not None and is_secret_proof(known, transcript, proof):
                    return known
            self._warn("a broker could not prove that it knows the secret of this cluster")
            raise RefusedError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "The broker does not know the secret of the cluster",
            )
        token = self._tokens().get(transcript.token_id)
        # Also if there is none: how long it takes must not tell.
        stored_hash = token.hash if token is not None else bytes(KEY_BYTES)
        key = secret_of_token(stored_hash, transcript, proof)
        if key is None or token is None:
            self._warn("a broker wanted to join with a token that is unknown or wrong")
            raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, JOIN_TOKEN_REFUSED)
        return key

    # ---- challenges

    def _sign(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")

    def _check_challenge(self, challenge: bytes) -> float:
        """When it was made. Raises RefusedError, which is retriable with a new challenge."""
        expired_at = self._clock.monotonic() - CHALLENGE_SECONDS_MAX
        for used in [used for used, made in self._used.items() if made < expired_at]:
            del self._used[used]
        content, signature = challenge[:_CONTENT_BYTES], challenge[_CONTENT_BYTES:]
        made_at = int.from_bytes(content[:_TIME_BYTES], "big") / 1000
        if (
            not hmac.compare_digest(self._sign(content), signature)
            or made_at < expired_at
            or challenge in self._used
            or len(self._used) >= _USED_MAX
        ):
            raise RefusedError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                "The challenge has expired, was used, or is of another broker: ask for a new one",
            )
        return made_at

    def _warn(self, text: str) -> None:
        """At most one line every few seconds: a flood must not fill the disk."""
        now = self._clock.monotonic()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            log.warning("%s", text, extra=events.JOIN_REFUSED())
