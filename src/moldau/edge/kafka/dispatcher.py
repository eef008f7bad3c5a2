"""Dispatches request frames to handlers, and their responses back to the connection."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final

from moldau.api.quotas import CLIENT_ID, ON_STEP, Quotas, timed
from moldau.api.session import OPEN_LISTENER, ListenerAccess, Session, Sessions
from moldau.edge.kafka.client_login import login_of
from moldau.edge.kafka.deadlines import Deadlines
from moldau.edge.kafka.handler import Api, Call, Handle, host_of
from moldau.edge.kafka.handlers.api_versions import unsupported_version_response
from moldau.edge.kafka.large_requests import finish
from moldau.edge.kafka.throttle import Throttle, mute_debtor
from moldau.edge.kafka.turn_order import TURNS, LargeRequests, Turns
from moldau.model import log_events as events
from moldau.model.errors import PeerProtocolError
from moldau.model.histogram import Histogram
from moldau.net.connection import NONE_OVERLAP, Connection
from moldau.security.principal import ANONYMOUS, Principal
from moldau.wire.framing import frame_response, read_request_fields
from moldau.wire.registry import ApiKey
from moldau.wire.schema import Request, Response

log = logging.getLogger(__name__)

_PRODUCE: Final = int(ApiKey.PRODUCE)


class _Served:
    """An API, as it is needed for every request."""

    __slots__ = ("count", "decoders", "first", "handle", "last", "request", "seconds", "shortcut")

    def __init__(self, api: Api) -> None:
        self.handle = api.handle
        self.request = api.request
        self.decoders = api.request.DECODERS
        self.shortcut = api.shortcut
        self.first, self.last = api.versions
        self.seconds = Histogram()
        self.count = 0


class Dispatcher:
    def __init__(
        self,
        sessions: Sessions,
        apis: Mapping[int, Api],
        listener: ListenerAccess = OPEN_LISTENER,
        quotas: Quotas | None = None,
        large: LargeRequests | None = None,
    ) -> None:
        """`large`: those of all listeners of the broker."""
        self._make_session = partial(sessions.session, listener=listener)
        self._sessions: dict[Connection, Session] = {}
        self._quotas = quotas
        self._large = large or LargeRequests()
        self._apis = {key: _Served(api) for key, api in apis.items()}
        self._deadlines = Deadlines()
        self._tasks: set[asyncio.Task[None]] = set()

    def requests_by_api(self) -> dict[str, int]:
        """Since the start; without unsupported APIs and versions."""
        return {ApiKey(key).title: api.count for key, api in self._apis.items()}

    def seconds_by_api(self) -> dict[str, Histogram]:
        """From the request to its reply, if it needs one."""
        return {ApiKey(key).title: api.seconds for key, api in self._apis.items()}

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        quotas = self._quotas
        # The time of decoding counts.
        began = None if quotas is None or quotas.active is None else perf_counter()
        key, version, correlation_id, client_id, position = read_request_fields(frame)
        api = self._apis.get(key)
        if api is None or not api.first <= version <= api.last:
            self._refuse(connection, key, version, correlation_id)
            return
        api.count += 1
        traffic = connection.traffic
        if traffic.client_id != client_id:
            traffic.called(client_id)
        # Appends keep their order while they wait for other brokers. All other requests are handled
        # after the earlier ones of the connection are done.
        connection.overlaps = key if key == _PRODUCE else NONE_OVERLAP
        request: Any = None
        shortcut = api.shortcut
        if shortcut is not None and began is None:
            request = shortcut(frame, version, position)
        if request is None:
            decode = api.decoders.get(version)
            if decode is None:
                request = api.request.decode(frame, version, position)
            else:
                # Message.decode, inlined.
                request = decode(frame, position)
        session = self._sessions.get(connection)
        if session is None:
            session = self._begin_session(connection, ANONYMOUS)
        call = Call(
            session,
            connection,
            key,
            version,
            correlation_id,
            client_id,
            self._deadlines,
            api.seconds,
        )
        if began is not None and (throttle := self._throttle(call, began)) is not None:
            self._handle_throttled(call, throttle, api.handle, request, len(frame))
            return
        result = api.handle(call, request)
        if result is None:
            return
        if isinstance(result, Response):
            if getattr(result, "error_code", 0):
                traffic.errors += 1
            body = result.encode(version)
            connection.reply(frame_response(key, version, correlation_id, body))
            call.record_duration()
        else:
            self._spawn(call, result)

    def _throttle(self, call: Call, began: float) -> Throttle | None:
        """None if the client has no quota. Nobody has one before the login: all clients would share
        that of the anonymous user, and one of them could keep the others from logging in."""
        login = login_of(call.connection)
        if self._quotas is None or (login is not None and login.principal is None):
            return None
        meter = self._quotas.meter(call.session.principal, call.client_id)
        return None if meter is None else Throttle(meter, call.connection, began)

    def _handle_throttled(
        self, call: Call, throttle: Throttle, handle: Handle, request: Request, size: int
    ) -> None:
        call.throttle = throttle
        if call.api_key == ApiKey.PRODUCE:
            throttle.received(size)
        client_id = CLIENT_ID.set(call.client_id or "")
        on_step = ON_STEP.set(throttle.spent)
        try:
            result = handle(call, request)
            if isinstance(result, Response):
                call.reply(result)
            elif result is not None:
                # The task keeps the client id, and what charges it.
                self._spawn(call, timed(result, throttle.spent))
        finally:
            CLIENT_ID.reset(client_id)
            ON_STEP.reset(on_step)
            throttle.pause()

    def principal_of(self, connection: Connection) -> Principal | None:
        """None before the first request of a client."""
        session = self._sessions.get(connection)
        return None if session is None else session.principal

    def on_closed(self, connection: Connection) -> None:
        """The connection itself abandons its deferred replies."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            session.fetch_sessions.close(connection)

    def set_principal(self, connection: Connection, principal: Principal) -> Session:
        """Who the client of a connection is, from its next request on."""
        session = self._begin_session(connection, principal)
        connection.set_user(str(principal))
        meter = None if self._quotas is None else self._quotas.meter(principal, None)
        if meter is not None:
            mute_debtor(meter, connection)
        return session

    def _begin_session(self, connection: Connection, principal: Principal) -> Session:
        session = self._make_session(principal, host_of(connection))
        if not connection.is_closed:
            # It may have closed while its password was checked: `on_closed` does not come again.
            self._sessions[connection] = session
        return session

    def _refuse(self, connection: Connection, key: int, version: int, correlation_id: int) -> None:
        if key == ApiKey.API_VERSIONS:
            # In version 0, so that a newer client learns the supported versions (KIP-511).
            body = unsupported_version_response().encode(0)
            connection.reply(frame_response(key, 0, correlation_id, body))
            return
        raise PeerProtocolError(f"API {key} version {version} is not supported")

    def _spawn(self, call: Call, handling: Awaitable[Response | None]) -> None:
        if call.reply_later is None:
            call.defer()
        task = asyncio.get_running_loop().create_task(self._answer(call, handling))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, call))

    async def _answer(self, call: Call, handling: Awaitable[Response | None]) -> None:
        turns = Turns(self._large, call.connection, call.client_host, call.session.clock)
        TURNS.set(turns)
        try:
            response = await handling
            if response is None:
                # The handler replies.
                return
            if turns.is_large:
                await _reply_in_turns(call, response)
            else:
                call.reply(response)
        finally:
            turns.end()

    def _finished(self, call: Call, task: asyncio.Task[None]) -> None:
        """Without a reply, later replies of the connection would wait indefinitely."""
        self._tasks.discard(task)
        if task.cancelled():
            # Or the connection is closed already, and a large request has stopped.
            call.connection.close("broker is stopping")
        elif (error := task.exception()) is not None:
            name, version = ApiKey(call.api_key).name, call.version
            log.error(
                "internal error while handling %s version %d",
                name,
                version,
                exc_info=error,
                extra=events.INTERNAL_ERROR(api=name),
            )
            call.connection.close("internal error", level=logging.ERROR)

    async def stop(self) -> None:
        """Cancels running handlers; their clients see the connection close."""
        self._deadlines.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _reply_in_turns(call: Call, response: Response) -> None:
    """For a response that may be so large that to encode it would hold up others."""
    encoding = finish(response.encode_in_steps(call.version))
    if call.throttle is None:
        body = await encoding
    else:
        # Before it is encoded: not twice.
        call.throttle.announce(response, call.api_key)
        body = await timed(encoding, call.throttle.spent)
    call.send(body)
