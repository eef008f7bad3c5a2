"""Owns a listener whose clients must authenticate, with the real gate and SASL handlers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from connections import framed, read_frame

from moldau.api.authentication import Authenticator
from moldau.api.login_throttle import LoginThrottle
from moldau.api.password_check import OsHashThreads
from moldau.client.sasl import Sasl
from moldau.edge.kafka.client_login import LoginRules
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.handlers import api_versions, sasl_authenticate, sasl_handshake
from moldau.edge.kafka.sasl_gate import SaslGate
from moldau.metadata.security import User
from moldau.model.clock import Clock
from moldau.net.budget import ByteBudget
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.security.principal import Principal, user
from moldau.security.scram import ScramMechanism, make_credential
from moldau.server.clock import SystemClock
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request, read_response_header
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.wire.registry import RESPONSES
from moldau.wire.schema import Request, Response

R = TypeVar("R", bound=Response)
PASSWORD = "alice-secret"
ADMIN_TOKEN = "token-of-the-data-directory"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def stored(name: str, password: str) -> User:
    return User(
        name,
        {
            mechanism: make_credential(password.encode(), os.urandom(16), 4096, mechanism)
            for mechanism in ScramMechanism
        },
    )


class OneToken:
    """Tokens that name their user and when they expire: `good carol 1700000000000`."""

    async def check(self, token: str) -> tuple[Principal, int]:
        _, name, expires_at_ms = token.split()
        return user(name), int(expires_at_ms)


class SaslClient:
    """A client that sends what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, message: Request, version: int) -> None:
        for chunk in frame_request(message, version, 7, "test"):
            self.writer.write(cast("bytes", chunk))

    async def receive(self, kind: type[R], version: int) -> R:
        frame = memoryview(await read_frame(self.reader))
        key = kind.API_KEY
        _, position = read_response_header(frame, key, version)
        found = RESPONSES[key].decode(frame, version, position)
        assert isinstance(found, kind)
        return found

    async def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        self.post(SaslHandshakeRequest(mechanism=mechanism), version)
        return await self.receive(SaslHandshakeResponse, version)

    async def authenticate(self, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
        self.post(SaslAuthenticateRequest(auth_bytes=message), version)
        return await self.receive(SaslAuthenticateResponse, version)

    async def log_in(
        self, name: str, password: str, mechanism: str = "PLAIN"
    ) -> SaslAuthenticateResponse:
        """The last answer."""
        assert (await self.handshake(mechanism)).error_code == 0
        exchange = Sasl(mechanism=mechanism, username=name, password=password).exchange()
        message = next(exchange)
        while True:
            answer = await self.authenticate(message)
            if answer.error_code:
                return answer
            try:
                message = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                return answer

    async def list_groups(self) -> ListGroupsResponse:
        self.post(ListGroupsRequest(states_filter=[]), 4)
        return await self.receive(ListGroupsResponse, 4)

    async def send_raw(self, message: bytes) -> bytes:
        self.writer.write(framed(message))
        return await read_frame(self.reader)

    async def is_closed(self) -> bool:
        """Waits until the broker closes the connection; false if it says something instead."""
        try:
            return await asyncio.wait_for(self.reader.read(1), wait_seconds_max()) == b""
        except ConnectionResetError:
            return True


class SaslWorld:
    def __init__(self, clock: Clock, session_ms_max: int | None) -> None:
        self._clock = clock
        self.users: Mapping[str, User] = {"alice": stored("alice", PASSWORD)}
        self.served: list[str] = []
        """Who was served a request behind the gate."""
        self.authenticator = Authenticator(
            users=lambda: self.users,
            throttle=LoginThrottle(clock),
            threads=OsHashThreads(),
            decoy_key=os.urandom(32),
            random_bytes=os.urandom,
            admin_token=ADMIN_TOKEN,
            tokens=OneToken(),
        )
        apis = [api_versions.API, sasl_handshake.API, sasl_authenticate.API, self._behind()]
        sessions = SimpleNamespace(session=self._session)
        self.dispatcher = Dispatcher(cast("Any", sessions), {api.key: api for api in apis})
        limits = ConnectionLimits(
            request_bytes_max=1 << 20, inflight_bytes_max=1 << 20, inflight_requests_max=100
        )
        rules = LoginRules(
            authenticator=self.authenticator,
            mechanisms=MECHANISMS,
            clock=clock,
            session_ms_max=session_ms_max,
        )
        self.gate = SaslGate(self.dispatcher, rules, limits)
        self.listener = Listener(
            loop=asyncio.get_running_loop(),
            handler=self.gate,
            limits=ListenerLimits(
                connections_max=4096, connections_per_address_max=4096, idle_seconds_max=3600
            ),
            connection_limits=limits,
            budget=ByteBudget(1 << 24),
            clock=clock,
            on_accepted=self.gate.on_accepted,
        )
        _, self.port = self.listener.bind("127.0.0.1", 0)
        self.listener.start()

    def _session(self, principal: Principal, host: str, *, listener: object) -> Any:
        fetch_sessions = SimpleNamespace(close=lambda _: None)
        return SimpleNamespace(
            principal=principal, host=host, clock=self._clock, fetch_sessions=fetch_sessions
        )

    def _behind(self) -> Api:
        def handle(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
            self.served.append(str(call.session.principal))
            return ListGroupsResponse(groups=[])

        return Api(ListGroupsRequest, versions=(0, 5), handle=handle)

    async def connect(self) -> SaslClient:
        return SaslClient(*await asyncio.open_connection("127.0.0.1", self.port))


@contextlib.asynccontextmanager
async def sasl_world(
    clock: Clock | None = None, session_ms_max: int | None = None
) -> AsyncIterator[tuple[SaslWorld, Callable[[], Any]]]:
    """The world, and how to connect to it; connections are closed at the end."""
    world = SaslWorld(clock or SystemClock(), session_ms_max)
    opened: list[SaslClient] = []

    async def connect() -> SaslClient:
        opened.append(await world.connect())
        return opened[-1]

    try:
        yield world, connect
    finally:
        for client in opened:
            client.writer.close()
        world.listener.close()
        await world.gate.stop()
        await world.dispatcher.stop()
        world.authenticator.stop()
