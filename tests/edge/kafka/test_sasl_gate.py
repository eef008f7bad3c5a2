"""Nothing behind the gate is reached before a client has proved who it is, nor after it expired."""

import asyncio
import logging
import struct

import pytest
from connections import framed
from msgspec.structs import replace
from sasl_world import ADMIN_TOKEN, MECHANISMS, PASSWORD, sasl_world, stored

from moldau.api.authentication import Authenticator
from moldau.client.sasl import Sasl
from moldau.edge.kafka import client_login, sasl_gate
from moldau.model.errors import ErrorCode
from moldau.testing.waiting import until
from moldau.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest

pytestmark = pytest.mark.inprocess


class MovableClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self):
        return int(self.seconds * 1000)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
async def test_a_user_is_served_after_its_login_and_not_before(mechanism: str):
    async with sasl_world() as (world, connect):
        client = await connect()
        client.post(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
        assert (await client.receive(ApiVersionsResponse, 3)).error_code == 0
        answer = await client.log_in("alice", PASSWORD, mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        await client.list_groups()
        assert world.served == ["User:alice"]
        stranger = await connect()
        stranger.post(ListGroupsRequest(states_filter=[]), 4)
        assert await stranger.is_closed()
        assert world.served == ["User:alice"]


async def test_a_client_that_is_not_set_to_authenticate_is_logged_once_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with sasl_world() as (_, connect):
        for _ in range(10):
            client = await connect()
            client.post(ListGroupsRequest(states_filter=[]), 4)
            assert await client.is_closed()
    (line,) = caplog.messages
    assert "SASL_PLAINTEXT" in line


async def test_the_token_of_the_data_directory_opens_the_gate():
    async with sasl_world() as (world, connect):
        for mechanism in MECHANISMS[:3]:
            client = await connect()
            answer = await client.log_in("moldau-admin", ADMIN_TOKEN, mechanism)
            assert answer.error_code == 0
            await client.list_groups()
        assert world.served == ["User:moldau-admin"] * 3


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
async def test_a_refusal_says_no_more_than_it_must_and_ends_the_connection(
    mechanism: str, name: str, password: str
):
    async with sasl_world() as (world, connect):
        client = await connect()
        answer = await client.log_in(name, password, mechanism)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Authentication failed: wrong user or password"
        assert bytes(answer.auth_bytes) == b""
        assert await client.is_closed()
        assert world.served == []


async def test_requests_sent_along_with_a_login_that_fails_are_not_served():
    async with sasl_world() as (world, connect):
        client = await connect()
        client.post(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.post(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        for _ in range(3):
            client.post(ListGroupsRequest(states_filter=[]), 4)
        client.post(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 2)
        while await client.reader.read(1 << 16):
            pass
        assert world.served == []


async def test_a_frame_of_the_kind_that_overlaps_everything_does_not_slip_through():
    async with sasl_world() as (world, connect):
        client = await connect()
        await client.handshake("PLAIN")
        client.post(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()), 2)
        # -2 is what the connection calls "no kind".
        client.writer.write(framed(struct.pack(">hhih", -2, 0, 1, -1)))
        while await client.reader.read(1 << 16):
            pass
        assert world.served == []


async def test_an_unknown_mechanism_is_answered_with_the_known_ones():
    async with sasl_world() as (_, connect):
        client = await connect()
        answer = await client.handshake("GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)
        assert await client.is_closed()


async def test_messages_out_of_order_are_refused():
    async with sasl_world() as (_, connect):
        client = await connect()
        answer = await client.authenticate(b"\0alice\0" + PASSWORD.encode())
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()
        client = await connect()
        await client.handshake("PLAIN")
        assert (await client.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()


async def test_a_request_before_the_login_has_a_small_bound_and_a_large_one_after_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(client_login, "AUTHENTICATION_SECONDS_MAX", 3600)
    async with sasl_world() as (world, connect):
        client = await connect()
        client.writer.write(struct.pack(">i", sasl_gate.REQUEST_BYTES_MAX + 1))
        assert await client.is_closed()
        client = await connect()
        await client.log_in("alice", PASSWORD)
        client.post(ListGroupsRequest(states_filter=["x" * 1000] * 200), 4)
        await client.receive(ListGroupsResponse, 4)
        assert world.served == ["User:alice"]


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
async def test_old_clients_send_their_messages_without_a_header(mechanism: str):
    async with sasl_world() as (world, connect):
        client = await connect()
        assert (await client.handshake(mechanism, version=0)).error_code == 0
        exchange = Sasl(mechanism=mechanism, username="alice", password=PASSWORD).exchange()
        message = next(exchange)
        while True:
            answer = await client.send_raw(message)
            try:
                message = exchange.send(answer)
            except StopIteration:
                break
        await client.list_groups()
        assert world.served == ["User:alice"]
        client = await connect()
        await client.handshake("PLAIN", version=0)
        client.writer.write(framed(b"\0alice\0wrong"))
        assert await client.is_closed()


async def test_an_internal_error_during_a_login_without_headers_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def fail(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(client_login, "AUTHENTICATION_SECONDS_MAX", 3600)
    monkeypatch.setattr(Authenticator, "check_secret", fail)
    async with sasl_world() as (_, connect):
        client = await connect()
        await client.handshake("PLAIN", version=0)
        client.writer.write(framed(b"\0alice\0" + PASSWORD.encode()))
        assert await client.is_closed()
    assert "internal error" in caplog.text
    assert PASSWORD not in caplog.text


async def test_a_session_expires_unless_the_client_authenticates_again():
    clock = MovableClock()
    async with sasl_world(clock, session_ms_max=10_000) as (world, connect):
        client = await connect()
        answer = await client.log_in("alice", PASSWORD, "SCRAM-SHA-256")
        assert answer.session_lifetime_ms == 10_000
        clock.seconds += 9
        await client.list_groups()
        assert (await client.log_in("alice", PASSWORD, "SCRAM-SHA-256")).error_code == 0
        clock.seconds += 9
        await client.list_groups()
        clock.seconds += 2
        client.post(ListGroupsRequest(states_filter=[]), 4)
        assert await client.is_closed()
        assert len(world.served) == 2
        late = await connect()
        await late.log_in("alice", PASSWORD)
        clock.seconds += 11
        # Also then it may authenticate again, as with Kafka.
        assert (await late.log_in("alice", PASSWORD)).error_code == 0
        await late.list_groups()


async def test_a_session_lives_no_longer_than_its_token():
    clock = MovableClock()
    async with sasl_world(clock, session_ms_max=60_000) as (_, connect):
        client = await connect()
        await client.handshake("OAUTHBEARER")
        expires = int(clock.seconds * 1000) + 5_000
        message = f"n,,\x01auth=Bearer good carol {expires}\x01\x01".encode()
        assert (await client.authenticate(message)).session_lifetime_ms == 5_000
        await client.list_groups()
        clock.seconds += 5
        client.post(ListGroupsRequest(states_filter=[]), 4)
        assert await client.is_closed()


async def test_nobody_becomes_another_user_on_the_same_connection():
    async with sasl_world() as (world, connect):
        client = await connect()
        await client.log_in("alice", PASSWORD)
        answer = await client.log_in("moldau-admin", ADMIN_TOKEN)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "cannot change" in (answer.error_message or "")
        assert await client.is_closed()
        client = await connect()
        await client.log_in("alice", PASSWORD)
        refused = await client.handshake("SCRAM-SHA-256")
        assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert await client.is_closed()
        assert world.served == []


async def test_while_a_client_authenticates_again_nothing_else_is_served():
    async with sasl_world() as (world, connect):
        client = await connect()
        await client.log_in("alice", PASSWORD)
        await client.handshake("PLAIN")
        client.post(ListGroupsRequest(states_filter=[]), 4)
        assert await client.is_closed()
        assert world.served == []


async def test_connections_that_do_not_authenticate_in_time_are_closed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(client_login, "AUTHENTICATION_SECONDS_MAX", 0.5)
    async with sasl_world() as (world, connect):
        silent, begun = await connect(), await connect()
        await begun.handshake("SCRAM-SHA-256")
        authenticated = await connect()
        await authenticated.log_in("alice", PASSWORD)
        assert await silent.is_closed()
        assert await begun.is_closed()
        await authenticated.list_groups()
        assert world.listener.connection_count == 1


async def test_a_client_that_begins_to_authenticate_again_has_to_end_it(
    monkeypatch: pytest.MonkeyPatch,
):
    async with sasl_world() as (world, connect):
        client, other = await connect(), await connect()
        await client.log_in("alice", PASSWORD)
        monkeypatch.setattr(client_login, "AUTHENTICATION_SECONDS_MAX", 0.5)
        await client.handshake("PLAIN")
        # Also one that says something else meanwhile.
        client.post(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
        assert (await client.receive(ApiVersionsResponse, 3)).error_code == 0
        assert await client.is_closed()
        monkeypatch.setattr(client_login, "AUTHENTICATION_SECONDS_MAX", 3600)
        await other.log_in("alice", PASSWORD)
        await other.log_in("alice", PASSWORD)
        await other.list_groups()
        assert world.served == ["User:alice"]


async def test_what_is_announced_before_the_login_takes_nothing_from_users() -> None:
    announced = struct.pack(">i", 60_000) + b"\0\x12"
    async with sasl_world() as (world, connect):
        for _ in range(50):
            (await connect()).writer.write(announced)
        alice = await connect()
        assert (await alice.log_in("alice", PASSWORD)).error_code == 0
        assert world.listener.inflight_bytes == 0
        alice.writer.write(announced)
        await until(lambda: world.listener.inflight_bytes > 0, "what a user sends counts")
        assert world.listener.inflight_bytes <= 1 << 16


async def test_two_thousand_half_open_logins_do_not_keep_a_user_out(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with sasl_world() as (world, connect):
        for _ in range(20):
            half_open = await asyncio.gather(*(connect() for _ in range(100)))
            for client in half_open:
                client.post(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
                client.post(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"), 2)
        await until(lambda: world.listener.connection_count == 2000, "all are connected")
        client = await connect()
        await client.log_in("alice", PASSWORD, "SCRAM-SHA-512")
        await client.list_groups()
        assert world.served == ["User:alice"]
        assert len(caplog.records) < 5


@pytest.mark.parametrize("is_closed_at_once", [True, False])
async def test_a_connection_ends_when_its_user_is_made_again(is_closed_at_once: bool):
    """A broker that is busy sees the deletion and the new user in one image."""
    async with sasl_world() as (world, connect):
        client = await connect()
        assert (await client.log_in("alice", PASSWORD)).error_code == 0
        world.users = {"alice": replace(stored("alice", "of another person"), created=8)}
        if is_closed_at_once:
            world.gate.close_deleted()
        else:
            client.post(ListGroupsRequest(states_filter=[]), 4)
        assert await client.is_closed()
        assert world.served == []
        client = await connect()
        assert (await client.log_in("alice", "of another person")).error_code == 0
        await client.list_groups()


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
async def test_a_deleted_user_is_not_served_on_an_open_connection(mechanism: str):
    async with sasl_world() as (world, connect):
        client, idle = await connect(), await connect()
        for each in (client, idle):
            assert (await each.log_in("alice", PASSWORD, mechanism)).error_code == 0
        await client.list_groups()
        alice = world.users["alice"]
        world.users = {"alice": alice, "bob": stored("bob", "secret")}
        await client.list_groups()
        world.users = {"bob": world.users["bob"]}
        client.post(ListGroupsRequest(states_filter=[]), 4)
        assert await client.is_closed()
        # Nor by a new login on the connection.
        assert (await idle.log_in("alice", PASSWORD, mechanism)).error_code != 0
        assert await idle.is_closed()
        assert world.served == ["User:alice"] * 2


async def test_who_is_not_stored_is_not_locked_out_when_users_are_deleted():
    """The local administrator, and users of an identity provider."""
    async with sasl_world() as (world, connect):
        admin, carol, alice = await connect(), await connect(), await connect()
        assert (await admin.log_in("moldau-admin", ADMIN_TOKEN)).error_code == 0
        for client, name in ((carol, "carol"), (alice, "alice")):
            await client.handshake("OAUTHBEARER")
            message = f"n,,\1auth=Bearer good {name} 99999999999999\1\1".encode()
            assert (await client.authenticate(message)).error_code == 0
        world.users = {}
        await admin.list_groups()
        await carol.list_groups()
        # One that has the name of a deleted user must log in again, and may.
        alice.post(ListGroupsRequest(states_filter=[]), 4)
        assert await alice.is_closed()
        alice = await connect()
        await alice.handshake("OAUTHBEARER")
        assert (await alice.authenticate(message)).error_code == 0
        await alice.list_groups()
        assert world.served == ["User:moldau-admin", "User:carol", "User:alice"]


async def test_connections_of_deleted_users_are_closed_and_no_others():
    """Those that wait for data, too, which send nothing for minutes."""
    async with sasl_world() as (world, connect):
        world.users = {**world.users, "bob": stored("bob", "secret")}
        alice, bob, admin, unknown = [await connect() for _ in range(4)]
        assert (await alice.log_in("alice", PASSWORD)).error_code == 0
        assert (await bob.log_in("bob", "secret")).error_code == 0
        assert (await admin.log_in("moldau-admin", ADMIN_TOKEN)).error_code == 0
        await unknown.handshake("PLAIN")
        world.gate.close_deleted()
        await alice.list_groups()
        world.users = {"bob": world.users["bob"]}
        world.gate.close_deleted()
        assert await alice.is_closed()
        await bob.list_groups()
        await admin.list_groups()
        assert (await unknown.authenticate(b"\0bob\0secret")).error_code == 0
        for client in (bob, admin, unknown):
            client.writer.close()
        await until(lambda: not world.gate._connections, "no connection is kept")
