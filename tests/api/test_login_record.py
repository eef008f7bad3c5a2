"""Logins are counted and audited, whichever way they come, and no secret is in what is written."""

import base64
import json

import pytest
from login_world import ADMIN_TOKEN, PASSWORDS, LoginWorld

from moldau.api.audit import LOGIN_SECONDS, OTHERS, AuditLog
from moldau.api.login_record import LoginRecord
from moldau.api.request_login import RequestLogin
from moldau.client.sasl import Sasl
from moldau.security.principal import user
from moldau.security.sasl import AuthenticationError

HOST = "192.0.2.7"


class World(LoginWorld):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.record = LoginRecord(AuditLog(self.clock, self.lines.append))
        self.authenticator.logins = self.record

    @property
    def written(self) -> list[tuple[str, str, bool]]:
        """Who, how, and whether it succeeded."""
        found = [json.loads(line) for line in self.lines]
        assert all(each["use_case"] == "login" and each["host"] == HOST for each in found)
        return [(each["principal"], each["mechanism"], each["allowed"]) for each in found]

    async def log_in(self, mechanism: str, name: str, password: str) -> None:
        login = self.authenticator.exchange(mechanism, HOST)
        exchange = Sasl(mechanism=mechanism, username=name, password=password).exchange()
        message = next(exchange)
        while login.principal is None:
            answer = await login.step(message)
            if login.principal is None:
                message = exchange.send(answer)

    async def send(self, authorization: str) -> None:
        login = RequestLogin(self.authenticator)
        await login.caller([authorization], HOST)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_logins_of_kafka_clients(mechanism: str) -> None:
    world = World()
    await world.log_in(mechanism, "alice", PASSWORDS["alice"])
    for name in ("alice", "nobody"):
        with pytest.raises(AuthenticationError):
            await world.log_in(mechanism, name, "wrong")
    assert world.record.counts == {(mechanism, "success"): 1, (mechanism, "failure"): 2}
    assert world.written == [
        ("User:alice", mechanism, True),
        ("User:alice", mechanism, False),
        ("User:nobody", mechanism, False),
    ]
    assert "wrong" not in "".join(world.lines).replace("wrong password for", "")


async def test_logins_of_requests() -> None:
    world = World()
    token = world.tokens.issue("bob").token
    await world.send(basic("alice", PASSWORDS["alice"]))
    await world.send(f"Bearer {token}")
    await world.send(f"Bearer {ADMIN_TOKEN}")
    world.authenticator.of_certificate("CN=carol", HOST)
    for refused in (basic("alice", "guess-1"), "Bearer guess-2", "Digest guess-3"):
        with pytest.raises(AuthenticationError):
            await world.send(refused)
    with pytest.raises(AuthenticationError):
        world.authenticator.of_certificate("ANONYMOUS", HOST)
    assert world.record.counts == {
        ("PLAIN", "success"): 1,
        ("OAUTHBEARER", "success"): 2,
        ("certificate", "success"): 1,
        ("PLAIN", "failure"): 1,
        ("OAUTHBEARER", "failure"): 1,
        ("unknown", "failure"): 1,
        ("certificate", "failure"): 1,
    }
    assert [who for who, _, is_success in world.written if is_success] == [
        "User:alice",
        "User:bob",
        "User:moldau-admin",
        "User:CN=carol",
    ]
    written = "".join(world.lines)
    assert not any(secret in written for secret in (*PASSWORDS.values(), token, ADMIN_TOKEN))
    assert "guess" not in written


async def test_logins_that_are_refused_unseen_are_counted_for_themselves() -> None:
    world = World()
    for _ in range(8):
        # A clock that stands still: failures are not forgotten, and each waits for longer.
        world.authenticator._throttle.failed("alice", HOST)
    results = []
    for _ in range(40):
        try:
            await world.send(basic("alice", "guess"))
        except AuthenticationError as error:
            results.append(str(error))
        if ("PLAIN", "unchecked") in world.record.counts:
            break
    assert world.record.counts["PLAIN", "unchecked"] == 1
    assert "too many" in results[-1]
    assert "too many" in json.loads(world.lines[-1])["about"]


def test_a_client_that_logs_in_with_each_request_is_written_once_a_minute() -> None:
    world = World()
    for _ in range(1000):
        world.record.succeeded("PLAIN", user("alice"), HOST)
    world.record.succeeded("SCRAM-SHA-256", user("alice"), HOST)
    assert len(world.lines) == 2
    assert world.record.counts["PLAIN", "success"] == 1000
    world.clock.now_ms += int(LOGIN_SECONDS * 1000)
    world.record.succeeded("PLAIN", user("alice"), HOST)
    assert len(world.lines) == 3
    assert "left_out" not in world.lines[-1]


def test_guesses_are_bounded_by_address_and_hide_no_success() -> None:
    world = World()
    for number in range(OTHERS.burst * 2):
        world.record.failed("PLAIN", f"made-up-{number}", HOST, "no such user")
    assert len(world.lines) == OTHERS.client_burst
    world.record.succeeded("PLAIN", user("alice"), HOST)
    assert world.written[-1] == ("User:alice", "PLAIN", True)
    assert json.loads(world.lines[-1])["left_out"] == OTHERS.burst * 2 - OTHERS.client_burst
    world.record.failed("PLAIN", "alice", "192.0.2.8", "another password")
    assert len(world.lines) == OTHERS.client_burst + 2
