"""Who may join: a broker that knows the secret, or a token; and what all others learn."""

import asyncio
import random
import secrets
from collections.abc import Mapping

import msgspec
import pytest

from moldau.control import join_service
from moldau.control.join_service import CHALLENGE_SECONDS_MAX, JoinService
from moldau.log.secret_file import ClusterSecret
from moldau.metadata.security import JOIN_TOKEN_REFUSED, JoinToken
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import (
    Endpoint,
    JoinGrant,
    JoinRefusal,
    JoinReply,
    JoinRequest,
    ProvenJoinRequest,
)
from moldau.security.join_proof import (
    Transcript,
    hash_token,
    parse_token,
    prove_secret,
    prove_token,
    unseal,
)
from moldau.testing.replicas import ManualClock

pytestmark = pytest.mark.inprocess

SECRET = secrets.token_bytes(32)
TOKEN = parse_token("one." + secrets.token_urlsafe(24))
REPLY = JoinReply(cluster_id="c", broker_id=2, epoch=1, image=b"image", voters=(1,), learners=(2,))
REQUEST = JoinRequest(
    incarnation="dir",
    process="p",
    kafka=Endpoint("h", 1),
    raft=Endpoint("h", 2),
    http=Endpoint("h", 3),
)


class World:
    def __init__(self, tokens: Mapping[str, JoinToken] | None = None) -> None:
        self.clock = ManualClock()
        self.joined: list[tuple[JoinRequest, str]] = []
        self.failure: RefusedError | None = None
        self.returned: list[JoinRequest] = []
        self.service = JoinService(
            join=self._join,
            tokens=lambda: tokens or {},
            secret=ClusterSecret(SECRET),
            clock=self.clock,
            random_bytes=random.Random(1).randbytes,
            local_secret_file="/data/cluster.secret",
            on_return=self.returned.append,
        )

    async def _join(self, request: JoinRequest, token_id: str) -> JoinReply:
        if self.failure is not None:
            raise self.failure
        self.joined.append((request, token_id))
        return REPLY

    def proven(
        self, *, key: bytes = SECRET, token_id: str = "", request: bytes | None = None
    ) -> tuple[ProvenJoinRequest, Transcript]:
        transcript = Transcript(
            token_id,
            secrets.token_bytes(32),
            self.service.challenge().challenge,
            msgspec.json.encode(REQUEST) if request is None else request,
        )
        prove = prove_token if token_id else prove_secret
        wanted = ProvenJoinRequest(
            request=transcript.request,
            challenge=transcript.challenge,
            nonce=transcript.nonce,
            proof=prove(key, transcript),
            token_id=token_id,
        )
        return wanted, transcript

    def join(self, wanted: ProvenJoinRequest) -> bytes:
        return asyncio.run(self.service.join(wanted)).reply.sealed

    def refusal(self, wanted: ProvenJoinRequest) -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            self.join(wanted)
        assert self.joined == []
        return caught.value

    def sealed_refusal(
        self, wanted: ProvenJoinRequest, transcript: Transcript, key: bytes = SECRET
    ) -> JoinRefusal:
        """Fails if others can read or write it."""
        sealed = self.join(wanted)
        assert self.joined == []
        return msgspec.msgpack.decode(unseal(key, transcript, sealed), type=JoinRefusal)


def known_token(expires_ms: int = 1 << 50) -> dict[str, JoinToken]:
    return {TOKEN.id: JoinToken(TOKEN.id, hash_token(TOKEN.secret), expires_ms)}


def test_who_knows_the_secret_gets_a_reply_that_only_it_can_read() -> None:
    world = World()
    wanted, transcript = world.proven()
    sealed = world.join(wanted)
    assert world.joined == [(REQUEST, "")]
    assert b"image" not in sealed
    grant = msgspec.msgpack.decode(unseal(SECRET, transcript, sealed), type=JoinGrant)
    assert grant == JoinGrant(reply=REPLY, secret=SECRET)
    assert SECRET.hex() not in repr(grant)
    assert repr(SECRET) not in repr(grant)


def test_while_the_secret_is_changed_brokers_return_with_either_and_learn_no_newer_one() -> None:
    world = World()
    new = secrets.token_bytes(32)
    world.service._secret = ClusterSecret(new, SECRET)
    for key, learnt in ((new, (new, SECRET)), (SECRET, (SECRET, None))):
        wanted, transcript = world.proven(key=key)
        content = unseal(key, transcript, world.join(wanted))
        grant = msgspec.msgpack.decode(content, type=JoinGrant)
        assert (grant.secret, grant.earlier_secret) == learnt
        assert repr(SECRET) not in repr(grant)
    world.joined.clear()
    world.refusal(world.proven(key=secrets.token_bytes(32))[0])


def test_who_has_a_token_gets_the_secret_under_its_key() -> None:
    world = World(known_token())
    wanted, transcript = world.proven(key=TOKEN.secret, token_id=TOKEN.id)
    sealed = world.join(wanted)
    # Whether it may still be used is decided with the registration.
    assert world.joined == [(REQUEST, TOKEN.id)]
    grant = msgspec.msgpack.decode(unseal(TOKEN.secret, transcript, sealed), type=JoinGrant)
    assert grant.secret == SECRET


def test_a_token_does_not_give_the_secret_to_one_who_only_asks() -> None:
    """A query uses no token up: a used or expired one would give the secret again and again."""
    world = World(known_token())
    query = msgspec.json.encode(msgspec.structs.replace(REQUEST, is_query=True))
    wanted, transcript = world.proven(key=TOKEN.secret, token_id=TOKEN.id, request=query)
    refused = world.sealed_refusal(wanted, transcript, TOKEN.secret)
    assert refused.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_only_who_proves_the_secret_returns_to_where_it_says() -> None:
    """Also if it cannot be registered now: that may need the broker itself."""
    world = World(known_token())
    world.failure = RefusedError(ErrorCode.NOT_CONTROLLER, "nobody leads")
    query = msgspec.json.encode(msgspec.structs.replace(REQUEST, is_query=True))
    for wanted, _ in (
        world.proven(key=TOKEN.secret, token_id=TOKEN.id),
        world.proven(key=b"x" * 32),
        world.proven(request=query),
    ):
        world.refusal(wanted)
    assert world.returned == []
    world.refusal(world.proven()[0])
    assert world.returned == [REQUEST]


def test_a_refusal_after_the_proof_is_sealed() -> None:
    """A broker that was removed ends because of it: nobody else may be able to say so."""
    world = World()
    world.failure = RefusedError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Broker 2 was removed")
    refused = world.sealed_refusal(*world.proven())
    assert refused == JoinRefusal(
        code=ErrorCode.DUPLICATE_BROKER_REGISTRATION, message="Broker 2 was removed"
    )


def test_what_can_be_tried_again_is_no_refusal() -> None:
    world = World()
    world.failure = RefusedError(ErrorCode.NOT_CONTROLLER, "nobody leads")
    assert world.refusal(world.proven()[0]).code is ErrorCode.NOT_CONTROLLER


def test_who_knows_neither_is_refused_and_learns_nothing() -> None:
    world = World(known_token())
    by_secret, _ = world.proven(key=secrets.token_bytes(32))
    refused = world.refusal(by_secret)
    assert refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    unknown, _ = world.proven(key=TOKEN.secret, token_id="two")
    wrong, _ = world.proven(key=secrets.token_bytes(32), token_id=TOKEN.id)
    for wanted in (unknown, wrong):
        refused = world.refusal(wanted)
        assert (refused.code, str(refused)) == (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            JOIN_TOKEN_REFUSED,
        )


def test_an_unknown_token_is_refused_whatever_its_proof() -> None:
    # The mask for no token is no secret: anybody can make a proof that fits it.
    world = World()
    for proof in (bytes(32), b"", secrets.token_bytes(32)):
        wanted, _ = world.proven(key=TOKEN.secret, token_id="two")
        world.refusal(msgspec.structs.replace(wanted, proof=proof))


def test_a_request_that_is_sent_again_is_refused() -> None:
    world = World()
    wanted, _ = world.proven()
    world.join(wanted)
    world.joined.clear()
    refused = world.refusal(wanted)
    # Retriable: a broker that repeats itself asks for a new challenge.
    assert refused.code.is_unavailable


def test_a_challenge_is_valid_for_a_while_and_at_its_own_broker() -> None:
    world, other = World(), World()
    other.service._key = secrets.token_bytes(32)
    wanted, _ = world.proven()
    assert other.refusal(wanted).code.is_unavailable
    world.clock.steady += CHALLENGE_SECONDS_MAX + 1
    assert world.refusal(wanted).code.is_unavailable
    fresh, _ = world.proven()
    world.clock.steady += CHALLENGE_SECONDS_MAX - 1
    world.join(fresh)


@pytest.mark.parametrize("wrong", [b"", b"x" * 24, b"x" * 56, b"x" * 57])
def test_a_challenge_that_nobody_made_is_refused(wrong: bytes) -> None:
    world = World()
    wanted, _ = world.proven()
    assert world.refusal(msgspec.structs.replace(wanted, challenge=wrong)).code.is_unavailable


def test_a_changed_request_is_refused() -> None:
    world = World()
    wanted, _ = world.proven()
    other = msgspec.json.encode(msgspec.structs.replace(REQUEST, incarnation="mine"))
    for changed in (
        msgspec.structs.replace(wanted, request=other),
        msgspec.structs.replace(wanted, nonce=secrets.token_bytes(32)),
        msgspec.structs.replace(wanted, token_id="two"),
    ):
        world.refusal(changed)


def test_a_proven_request_that_makes_no_sense_is_refused() -> None:
    for request in (b"", b"[]", b"{}", b"\xff"):
        world = World()
        refused = world.sealed_refusal(*world.proven(request=request))
        assert refused.code == ErrorCode.INVALID_REQUEST


def test_what_is_remembered_of_used_challenges_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_service, "_USED_MAX", 3)
    world = World()
    for _ in range(3):
        world.join(world.proven()[0])
    world.joined.clear()
    assert world.refusal(world.proven()[0]).code.is_unavailable
    world.clock.steady += CHALLENGE_SECONDS_MAX + 1
    world.join(world.proven()[0])
    assert len(world.service._used) == 1


def test_failures_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for _ in range(5):
        world.refusal(world.proven(key=b"x" * 32)[0])
    assert caplog.text.count("could not prove") == 1
