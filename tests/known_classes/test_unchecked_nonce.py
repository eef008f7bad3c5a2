"""Known class: a nonce that is not checked, so that what was recorded can be played again.

Over real connections to the gate of a Kafka listener. The attacker knows the password here: so it
is the nonce that is refused, and nothing else.
"""

import base64
import hashlib
import hmac

import pytest
from sasl_world import PASSWORD, SaslClient, sasl_world

from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.inprocess

MECHANISM = "SCRAM-SHA-256"
FIRST = "n=alice,r=chosen-by-the-client"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


def fields(challenge: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in challenge.decode().split(","))


def final(challenge: bytes, nonce: str) -> bytes:
    """Signed with the right password, over this nonce."""
    given = fields(challenge)
    without_proof = f"c=biws,r={nonce}"
    signed = f"{FIRST},{challenge.decode()},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(
        "sha256", PASSWORD.encode(), base64.b64decode(given["s"]), int(given["i"])
    )
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


async def challenge_of(client: SaslClient) -> bytes:
    assert (await client.handshake(MECHANISM)).error_code == 0
    answer = await client.authenticate(f"n,,{FIRST}".encode())
    assert answer.error_code == 0
    return bytes(answer.auth_bytes)


WRONG_NONCES = {
    "the client's alone": lambda mine, other: "chosen-by-the-client",
    "the server's alone": lambda mine, other: mine.removeprefix("chosen-by-the-client"),
    "one letter less": lambda mine, other: mine[:-1],
    "one letter more": lambda mine, other: mine + "A",
    "in capitals": lambda mine, other: mine.swapcase(),
    "none": lambda mine, other: "",
    "that of another exchange": lambda mine, other: other,
    "both": lambda mine, other: mine + other,
}


@pytest.mark.parametrize("case", WRONG_NONCES)
async def test_only_the_nonce_of_the_exchange_is_accepted(case: str):
    async with sasl_world() as (world, connect):
        one, another = await connect(), await connect()
        mine = await challenge_of(one)
        other = await challenge_of(another)
        nonce = WRONG_NONCES[case](fields(mine)["r"], fields(other)["r"])
        assert (await one.authenticate(final(mine, nonce))).error_code == FAILED
        assert world.served == []
        # The check of this test: with its own nonce the same client comes in.
        assert (await another.authenticate(final(other, fields(other)["r"]))).error_code == 0
        await another.list_groups()
        assert world.served == ["User:alice"]


async def test_a_recorded_login_is_of_no_use():
    """To the letter, on a new connection: the server's part of the nonce is another one."""
    async with sasl_world() as (world, connect):
        one = await connect()
        challenge = await challenge_of(one)
        recorded = final(challenge, fields(challenge)["r"])
        assert (await one.authenticate(recorded)).error_code == 0
        # In the same connection as well, where it would be a new login.
        for client in (one, await connect()):
            assert await challenge_of(client) != challenge
            assert (await client.authenticate(recorded)).error_code == FAILED
        assert world.served == []


async def test_nonces_do_not_repeat_and_cannot_be_guessed():
    async with sasl_world() as (_, connect):
        found = set()
        for _ in range(20):
            nonce = fields(await challenge_of(await connect()))["r"]
            found.add(nonce.removeprefix("chosen-by-the-client"))
    assert len(found) == 20
    # 128 bits and more, in letters of at most six bits.
    assert min(map(len, found)) * 6 >= 128
