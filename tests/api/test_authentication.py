"""Who is let in, by each way to prove it, and what the others learn: nothing."""

import asyncio
import base64
import logging
import os
from collections.abc import Awaitable, Callable, Mapping

import pytest
from handler_calls import LoopClock
from scram_client import ScramClient

from moldau.api.authentication import TOO_MANY, WRONG_TOKEN, Authenticator
from moldau.api.login_throttle import REFUSAL_SECONDS, LoginThrottle
from moldau.api.password_check import UnavailableError
from moldau.metadata.security import User
from moldau.security.principal import LOCAL_ADMIN, Principal, user
from moldau.security.sasl import WRONG_CREDENTIALS, AuthenticationError
from moldau.security.scram import ScramMechanism, make_credential

HOST = "10.0.0.1"
ADMIN_TOKEN = "token-of-the-data-directory"
PASSWORD = "planted-secret-9f2c"
_MECHANISMS = {each.sasl_name: each for each in ScramMechanism}


class NoThreads:
    """Runs each check at once, after a turn of the loop, and counts them."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, check: Callable[[], bool]) -> bool:
        self.runs += 1
        await asyncio.sleep(0.01)
        return check()

    def stop(self) -> None:
        pass


class Tokens:
    """An identity provider that knows one token."""

    is_down = False

    async def check(self, token: str) -> tuple[Principal, int]:
        if self.is_down:
            raise UnavailableError("down", reason="down")
        if not token.startswith("good"):
            raise AuthenticationError(WRONG_TOKEN, reason="bad signature")
        return user(token.removeprefix("good-")), 5_000


def stored(name: str, password: str, *mechanisms: ScramMechanism) -> User:
    credentials = {
        mechanism: make_credential(password.encode(), os.urandom(16), 4096, mechanism)
        for mechanism in mechanisms or tuple(ScramMechanism)
    }
    return User(name, credentials)


class World:
    def __init__(self) -> None:
        self.users: Mapping[str, User] = {"alice": stored("alice", PASSWORD)}
        self.threads = NoThreads()
        self.tokens = Tokens()
        self.authenticator = Authenticator(
            users=lambda: self.users,
            throttle=LoginThrottle(LoopClock()),
            threads=self.threads,
            decoy_key=b"k" * 32,
            random_bytes=os.urandom,
            admin_token=ADMIN_TOKEN,
            tokens=self.tokens,
        )

    async def plain(self, message: bytes, host: str = HOST) -> Principal | None:
        login = self.authenticator.exchange("PLAIN", host)
        assert await login.step(message) == b""
        return login.principal

    async def scram(
        self, name: str, password: str, mechanism: str = "SCRAM-SHA-256", host: str = HOST
    ) -> Principal | None:
        client = ScramClient(name, password.encode(), mechanism=_MECHANISMS[mechanism])
        login = self.authenticator.exchange(mechanism, host)
        challenge = await login.step(client.first)
        assert login.principal is None
        final = client.final(challenge)
        assert await login.step(final) == client.expected
        return login.principal


async def refusal(attempt: Awaitable[object]) -> tuple[str, float]:
    """The text that a client gets, and after how long."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(AuthenticationError) as caught:
        await attempt
    return str(caught.value), asyncio.get_running_loop().time() - began


async def test_each_mechanism_lets_its_user_in():
    world = World()
    assert world.authenticator.mechanisms == (
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
    )
    assert await world.plain(b"\0alice\0" + PASSWORD.encode()) == user("alice")
    assert await world.scram("alice", PASSWORD) == user("alice")
    assert await world.scram("alice", PASSWORD, "SCRAM-SHA-512") == user("alice")
    login = world.authenticator.exchange("OAUTHBEARER", HOST)
    assert await login.step(b"n,,\x01auth=Bearer good-carol\x01\x01") == b""
    assert (login.principal, login.expires_at_ms) == (user("carol"), 5_000)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
async def test_a_password_fits_whichever_credential_a_user_has(mechanism: ScramMechanism):
    world = World()
    world.users = {"bob": stored("bob", "secret", mechanism)}
    assert await world.authenticator.check_password("bob", "secret") == user("bob")
    other = "SCRAM-SHA-512" if mechanism is ScramMechanism.SHA_256 else "SCRAM-SHA-256"
    with pytest.raises(AuthenticationError):
        await world.scram("bob", "secret", other)


async def test_a_wrong_password_and_an_unknown_user_get_the_same_answer_in_the_same_time():
    answers = set()
    for name in ("alice", "nobody"):
        world = World()
        answers.add(await refusal(world.authenticator.check_password(name, "wrong")))
        assert world.threads.runs == 1
        world = World()
        answers.add(await refusal(world.plain(f"\0{name}\0wrong".encode())))
        world = World()
        answers.add(await refusal(world.scram(name, "wrong")))
    ((text, seconds),) = {(text, round(seconds, 6)) for text, seconds in answers}
    assert text == WRONG_CREDENTIALS
    assert seconds == REFUSAL_SECONDS


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_the_challenge_does_not_say_whether_a_user_exists(mechanism: str):
    world = World()

    async def challenge(name: str) -> tuple[int, str, str]:
        login = world.authenticator.exchange(mechanism, HOST)
        answer = await login.step(f"n,,n={name},r=abc".encode())
        told = dict(part.split("=", 1) for part in answer.decode().split(","))
        return len(base64.b64decode(told["s"])), told["i"], told["s"]

    exists, unknown = await challenge("alice"), await challenge("nobody")
    assert exists[:2] == unknown[:2]
    # The salt of a name stays the same, as that of a user does.
    assert await challenge("nobody") == unknown
    assert (await challenge("nobody else"))[2] != unknown[2]


async def test_a_password_that_fitted_is_not_hashed_again_until_it_changes():
    world = World()
    for _ in range(3):
        await world.authenticator.check_password("alice", PASSWORD)
    assert world.threads.runs == 1
    world.users = {"alice": stored("alice", "another")}
    with pytest.raises(AuthenticationError):
        await world.authenticator.check_password("alice", PASSWORD)
    assert world.threads.runs == 2
    await world.authenticator.check_password("alice", "another")
    world.users = {}
    with pytest.raises(AuthenticationError):
        await world.authenticator.check_password("alice", "another")


async def test_a_check_under_way_does_not_answer_for_a_password_that_has_just_changed():
    world = World()
    old = asyncio.create_task(world.authenticator.check_password("alice", PASSWORD))
    await asyncio.sleep(0)
    world.users = {"alice": stored("alice", "another")}
    new = asyncio.create_task(world.authenticator.check_password("alice", "another"))
    with pytest.raises(AuthenticationError):
        await world.authenticator.check_password("alice", PASSWORD)
    # Begun before the change, but answered after it.
    with pytest.raises(AuthenticationError):
        await old
    assert await new == user("alice")
    with pytest.raises(AuthenticationError):
        await world.authenticator.check_password("alice", PASSWORD)


@pytest.mark.parametrize("after", ["another", None], ids=["changed", "deleted"])
async def test_an_exchange_under_way_does_not_prove_a_password_that_has_just_changed(
    after: str | None,
):
    world = World()
    client = ScramClient("alice", PASSWORD.encode())
    login = world.authenticator.exchange("SCRAM-SHA-256", HOST)
    proof = client.final(await login.step(client.first))
    world.users = {} if after is None else {"alice": stored("alice", after)}
    assert (await refusal(login.step(proof)))[0] == WRONG_CREDENTIALS
    assert login.principal is None


@pytest.mark.parametrize("names", [1, 200], ids=["of-one-user", "of-many-users"])
async def test_a_guess_that_is_cancelled_counts_as_one_that_failed(names: int):
    loop = asyncio.get_running_loop()
    world = World()
    check = world.authenticator.check_password
    for number in range(max(names, 10)):
        name = "alice" if names == 1 else f"user-{number}"
        runs = world.threads.runs
        guess = asyncio.create_task(check(name, f"guess-{number}", HOST))
        while world.threads.runs == runs:
            await asyncio.sleep(0.001)
        guess.cancel()
        await asyncio.wait({guess})
        assert guess.cancelled()
    began = loop.time()
    assert await check("alice", PASSWORD, HOST) == user("alice")
    assert loop.time() - began > REFUSAL_SECONDS


async def test_connections_that_share_a_check_and_leave_cost_their_user_one_failure():
    world = World()
    leaving = [
        asyncio.create_task(world.authenticator.check_password("alice", PASSWORD, HOST))
        for _ in range(10)
    ]
    while not world.threads.runs:
        await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    assert all(task.cancelled() for task in leaving)
    # Whoever failed often waits from the second attempt on.
    await refusal(world.authenticator.check_password("alice", "mistyped", HOST))
    began = asyncio.get_running_loop().time()
    assert await world.authenticator.check_password("alice", PASSWORD, HOST) == user("alice")
    assert asyncio.get_running_loop().time() - began < REFUSAL_SECONDS


async def test_a_busy_broker_counts_no_failure_of_its_clients(monkeypatch: pytest.MonkeyPatch):
    world = World()
    with monkeypatch.context() as patch:
        patch.setattr("moldau.api.password_check._WAITING_MAX", 0)
        for _ in range(10):
            with pytest.raises(UnavailableError):
                await world.authenticator.check_password("alice", PASSWORD, HOST)
    assert world.threads.runs == 0
    await refusal(world.authenticator.check_password("alice", "mistyped", HOST))
    began = asyncio.get_running_loop().time()
    assert await world.authenticator.check_password("alice", PASSWORD, HOST) == user("alice")
    assert asyncio.get_running_loop().time() - began < REFUSAL_SECONDS


async def test_many_connections_of_one_user_at_once_cost_one_hash_and_none_waits():
    world = World()
    began = asyncio.get_running_loop().time()
    found = await asyncio.gather(
        *(world.authenticator.check_password("alice", PASSWORD, HOST) for _ in range(500))
    )
    assert set(found) == {user("alice")}
    assert world.threads.runs == 1
    assert asyncio.get_running_loop().time() - began < REFUSAL_SECONDS


async def test_guesses_at_once_are_mostly_not_even_looked_at():
    world = World()
    guesses = [
        refusal(world.authenticator.check_password("alice", f"guess-{number}", HOST))
        for number in range(200)
    ]
    answers = [text for text, _ in await asyncio.gather(*guesses)]
    assert answers.count(TOO_MANY) > 180
    assert world.threads.runs < 20
    # Elsewhere nobody notices.
    assert await world.authenticator.check_password("alice", PASSWORD, "10.0.0.2") == user("alice")


async def test_names_tried_at_once_are_mostly_not_looked_at_and_known_users_come_in():
    world = World()
    await world.authenticator.check_password("alice", PASSWORD, HOST)
    guesses = [
        asyncio.create_task(
            refusal(world.authenticator.check_password(f"user-{number}", "guess", HOST))
        )
        for number in range(1000)
    ]
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    assert await world.authenticator.check_password("alice", PASSWORD, HOST) == user("alice")
    assert asyncio.get_running_loop().time() == began
    answers = [text for text, _ in await asyncio.gather(*guesses)]
    assert answers.count(TOO_MANY) > 800
    assert world.threads.runs < 200


async def test_a_thousand_users_behind_one_address_all_come_in():
    world = World()
    credentials = world.users["alice"].credentials
    world.users = {f"user-{number}": User(f"user-{number}", credentials) for number in range(1000)}
    found = await asyncio.gather(
        *(world.authenticator.check_password(name, PASSWORD, HOST) for name in world.users)
    )
    assert len(set(found)) == 1000
    assert world.authenticator._throttle._slots == {}


async def test_scram_shows_no_shape_that_only_users_have():
    """Users of two tools; a stranger asks for names."""
    world = World()
    salt = os.urandom(26)
    other = make_credential(b"x", salt, 8192, ScramMechanism.SHA_256)
    world.users = {**world.users, "zoe": User("zoe", {ScramMechanism.SHA_256: other})}

    async def shape(name: str) -> tuple[bytes, int]:
        client = ScramClient(name, b"x")
        reply = await world.authenticator.exchange("SCRAM-SHA-256", HOST).step(client.first)
        _, salt, iterations = reply.split(b",")
        return iterations, len(salt)

    unknown = {name: await shape(name) for name in (f"nobody-{n}" for n in range(30))}
    assert set(unknown.values()) == {await shape("alice"), await shape("zoe")}
    assert unknown == {name: await shape(name) for name in unknown}


async def test_scram_guesses_wait_too():
    world = World()
    texts = [(await refusal(world.scram("alice", f"guess-{n}")))[0] for n in range(10)]
    assert texts == [WRONG_CREDENTIALS] * 10
    began = asyncio.get_running_loop().time()
    assert await world.scram("alice", PASSWORD) == user("alice")
    assert asyncio.get_running_loop().time() > began


async def test_a_recorded_exchange_cannot_be_played_again():
    world = World()
    client = ScramClient("alice", PASSWORD.encode())
    login = world.authenticator.exchange("SCRAM-SHA-256", HOST)
    recorded = client.final(await login.step(client.first))
    await login.step(recorded)
    again = world.authenticator.exchange("SCRAM-SHA-256", HOST)
    await again.step(client.first)
    text, _ = await refusal(again.step(recorded))
    assert text == WRONG_CREDENTIALS
    assert again.principal is None
    # Nor is a second proof looked at.
    with pytest.raises(AuthenticationError):
        await again.step(client.final(b"r=x,s=eA==,i=4096"))


async def test_the_token_of_the_data_directory_is_the_administrator():
    world = World()
    name = LOCAL_ADMIN.name
    assert await world.authenticator.check_bearer(ADMIN_TOKEN) == (LOCAL_ADMIN, None)
    assert await world.authenticator.check_password(name, ADMIN_TOKEN) == LOCAL_ADMIN
    assert await world.scram(name, ADMIN_TOKEN, "SCRAM-SHA-512") == LOCAL_ADMIN
    for wrong in ("", "x", ADMIN_TOKEN[:-1], ADMIN_TOKEN + "x"):
        with pytest.raises(AuthenticationError):
            await world.authenticator.check_bearer(wrong)
        with pytest.raises(AuthenticationError):
            await world.authenticator.check_password(name, wrong)


async def test_nobody_becomes_the_administrator_by_name():
    world = World()
    name = LOCAL_ADMIN.name
    world.users = {name: stored(name, "secret")}
    with pytest.raises(AuthenticationError):
        await world.authenticator.check_password(name, "secret")
    with pytest.raises(AuthenticationError):
        await world.scram(name, "secret")
    for reserved in (name, "ANONYMOUS", "*"):
        with pytest.raises(AuthenticationError):
            await world.authenticator.check_bearer(f"good-{reserved}")
        with pytest.raises(AuthenticationError):
            world.authenticator.of_certificate(reserved)
    assert world.authenticator.of_certificate("CN=alice") == user("CN=alice")


async def test_without_a_token_in_the_directory_there_is_no_administrator():
    authenticator = Authenticator(
        users=dict,
        throttle=LoginThrottle(LoopClock()),
        threads=NoThreads(),
        decoy_key=b"k" * 32,
        random_bytes=os.urandom,
    )
    assert "OAUTHBEARER" not in authenticator.mechanisms
    for secret in ("", "None"):
        with pytest.raises(AuthenticationError):
            await authenticator.check_bearer(secret)
        with pytest.raises(AuthenticationError):
            await authenticator.check_password(LOCAL_ADMIN.name, secret)


async def test_a_provider_that_is_down_costs_nobody_a_failed_attempt():
    world = World()
    world.tokens.is_down = True
    for _ in range(300):
        with pytest.raises(UnavailableError):
            await world.authenticator.check_bearer("good-carol", HOST)
    world.tokens.is_down = False
    began = asyncio.get_running_loop().time()
    assert await world.authenticator.check_bearer("good-carol", HOST) == (user("carol"), 5_000)
    assert asyncio.get_running_loop().time() == began


@pytest.mark.parametrize(
    "message",
    [b"", b"\0", b"\0\0", b"alice", b"\0alice\0", b"root\0alice\0x", b"\0\xff\0x", b"\0a" * 9],
)
async def test_malformed_messages_of_plain_are_refused(message: bytes):
    text, seconds = await refusal(World().plain(message))
    assert text.startswith("Authentication failed")
    assert seconds == pytest.approx(REFUSAL_SECONDS)


async def test_no_password_shows_in_logs_or_errors(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    world = World()
    seen = []
    for attempt in (
        world.plain(f"\0bob\0{PASSWORD}".encode()),
        world.plain(f"{PASSWORD}\0bob\0{PASSWORD}".encode()),
        world.authenticator.check_password("bob", PASSWORD),
        world.authenticator.check_bearer(PASSWORD),
        world.scram("bob", PASSWORD),
    ):
        with pytest.raises(AuthenticationError) as caught:
            await attempt
        seen.append(f"{caught.value!r} {caught.value.reason} {caught.value.__cause__!r}")
    assert caplog.messages
    assert PASSWORD not in caplog.text + "".join(seen)
