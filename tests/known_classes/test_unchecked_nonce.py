"""Known class: a nonce that is not checked, so that what was recorded can be played again.

Over real connections to the gate of a Kafka listener. The attacker knows the password here: so it
is the nonce that is refused, and nothing else.
"""

import pytest
from sasl_world import PASSWORD, SaslClient, sasl_world
from scram_client import ScramClient, fields_of

from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.inprocess

MECHANISM = "SCRAM-SHA-256"
ALICE = ScramClient(password=PASSWORD.encode(), nonce="chosen-by-the-client")
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


async def challenge_of(client: SaslClient) -> bytes:
    assert (await client.handshake(MECHANISM)).error_code == 0
    answer = await client.authenticate(ALICE.first)
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
        nonce = WRONG_NONCES[case](fields_of(mine)["r"], fields_of(other)["r"])
        assert (await one.authenticate(ALICE.final(mine, nonce=nonce))).error_code == FAILED
        assert world.served == []
        # The check of this test: with its own nonce the same client comes in.
        assert (await another.authenticate(ALICE.final(other))).error_code == 0
        await another.list_groups()
        assert world.served == ["User:alice"]


async def test_a_recorded_login_is_of_no_use():
    """To the letter, on a new connection: the server's part of the nonce is another one."""
    async with sasl_world() as (world, connect):
        one = await connect()
        challenge = await challenge_of(one)
        recorded = ALICE.final(challenge)
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
            nonce = fields_of(await challenge_of(await connect()))["r"]
            found.add(nonce.removeprefix("chosen-by-the-client"))
    assert len(found) == 20
    # 128 bits and more, in letters of at most six bits.
    assert min(map(len, found)) * 6 >= 128
