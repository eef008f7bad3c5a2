"""Common behaviour of all calls: malformed messages, errors, internal errors, shutdown.

A call is a coroutine that gets a message and a session, and returns a message, or gets a stream; it
raises QueueRefusedError or RefusedError. It is wrapped in a gRPC handler, which finds out who
calls, and sends clients only a status, trailers and a message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from moldau import tracing
from moldau.api.entrance import Entrance, Visit
from moldau.api.queues import invalid
from moldau.api.session import Session
from moldau.edge.grpc.caller import authorization_of, certificate_of, host_of
from moldau.edge.grpc.clients import GrpcClients
from moldau.edge.grpc.errors import (
    SILENT,
    STOPPING,
    ErrorStatus,
    internal_error,
    short,
    status_of,
    too_many_calls,
    unknown_caller,
)
from moldau.model.errors import MoldauError, QuotaExceededError
from moldau.net.address_limits import AddressLimits
from moldau.security.quotas import QuotaKey
from moldau.security.sasl import AuthenticationError

CALLS_PER_ADDRESS_MAX: Final = 6144
"""Concurrent ones: an address cannot take the place of all others. gRPC accepts connections
itself, and has no limit for those of one address."""

QUOTA_WAIT_SECONDS_MAX: Final = 5.0
"""A stream over its quota of time is not read for so long; one that has to wait longer ends."""

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message | bytes)
T = TypeVar("T")

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]

    from moldau.tracing.otel import OtelTracer


class RefusedCallError(MoldauError):
    """The call fails with this status."""

    def __init__(self, status: ErrorStatus) -> None:
        super().__init__(status.text)
        self.status = status


class _Malformed:
    """Stands for a message that could not be decoded."""


_MALFORMED: Final = _Malformed()


class Call(Generic[Q, R]):
    """One call, for its handler: session, further requests, responses, and the deadline."""

    def __init__(self, calls: "Calls", context: "Context", kind: type[Q], visit: Visit) -> None:
        self.session = visit.session
        self._visit = visit
        self._calls = calls
        self._context = context
        self._kind = kind

    async def read(self) -> Q | None:
        """The next request; None: the client sent the last one. Raises QueueRefusedError, and
        QuotaExceededError to a client that would have to wait for long."""
        # A stream was let in once, and may have used up its time since.
        if (wait := self._wait()) <= QUOTA_WAIT_SECONDS_MAX:
            await self._admitted(wait)
        request: Q | _Malformed | object = await self._context.read()
        self.check()
        if request is aio.EOF:
            return None
        if wait > QUOTA_WAIT_SECONDS_MAX:
            # It would time out before it is served, and not know when to try again. Refused with
            # its request, as at the entrance.
            if (meter := self.session.meter()) and self._wait() > QUOTA_WAIT_SECONDS_MAX:
                meter.check(QuotaKey.REQUEST)
            await self._admitted(self._wait())
        return decoded(cast("Q | _Malformed", request), self._kind)

    def _wait(self) -> float:
        """The seconds that the client has to wait by now."""
        meter = self.session.meter()
        return 0.0 if meter is None else meter.wait(QuotaKey.REQUEST)

    async def _admitted(self, wait: float) -> None:
        if wait and (meter := self.session.meter()) is not None:
            await meter.admitted(QuotaKey.REQUEST)

    async def write(self, response: R) -> None:
        """Returns when the response is accepted by flow control."""
        self.check()
        await self.confirm(response)

    async def confirm(self, response: R) -> None:
        """As `write`, of what has happened already: also if the caller's proof has expired since,
        since the client would take it for not done, and do it twice."""
        with self._calls.writing():
            await self._context.write(response)

    def check(self) -> None:
        """A call may be longer than its caller's proof lasts. Raises AuthenticationError."""
        self._visit.check()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the client's deadline; None: it has none."""
        left = self._context.time_remaining()
        return None if left is None else float(left)


def traced(
    kind: type[Message], serve: "Callable[[Visit, Context], Awaitable[R]]", tracer: "OtelTracer"
) -> "Callable[[Visit, Context], Awaitable[R]]":
    """With a span around it, in the trace of the client. What has no trace begins one only by
    sending a message: others would be a trace each, of a single span."""
    method = kind.DESCRIPTOR.name.removesuffix("Request")
    name = f"{kind.DESCRIPTOR.file.package}.Queue/{method}"
    attributes = {"rpc.system": "grpc", "rpc.method": name}

    async def serve_traced(visit: Visit, context: "Context") -> R:
        given = list(context.invocation_metadata() or ())
        if method != "Send" and not tracer.is_traced(given):
            return await serve(visit, context)
        with tracer.request(name, given, attributes):
            return await serve(visit, context)

    return serve_traced


def decoded(request: Q | _Malformed, kind: type[Q]) -> Q:
    if isinstance(request, _Malformed):
        raise invalid(f"cannot decode the request as {kind.DESCRIPTOR.name}")
    return request


class Calls:
    """Creates handlers, and tracks the calls that wait."""

    def __init__(
        self,
        entrance: Entrance,
        *,
        request_seconds_max: float = 30.0,
        calls_per_address_max: int = CALLS_PER_ADDRESS_MAX,
    ) -> None:
        self._entrance = entrance
        self._addresses = AddressLimits(calls_per_address_max, what="calls")
        self._loop = asyncio.get_running_loop()
        self.clients = GrpcClients(self._loop.time, entrance.listener_name or "grpc")
        self._request_seconds_max = request_seconds_max
        self._silent: dict[asyncio.Task[Any], float] = {}
        """Calls whose request has not arrived, and until when it must; the oldest one first."""
        self._silence_timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        self.stopping: asyncio.Future[None] = self._loop.create_future()
        """Done when the broker stops."""

    def stop(self) -> None:
        """Fail waiting calls and all new ones."""
        if not self.stopping.done():
            self.stopping.set_result(None)
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        for task in (*self._waiting, *self._silent):
            task.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The call is cancelled inside this block when the broker stops."""
        task = current_task()
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A stop does not interrupt a write: gRPC cannot send an error after half a message."""
        task = asyncio.current_task()
        if task not in self._waiting:
            yield
            return
        self._waiting.discard(task)
        try:
            yield
        finally:
            self._waiting.add(task)
        self._check_running()

    # ---- kinds of calls

    # For gRPC, all of them have a stream of requests: of a call with one request it would read the
    # whole message before it asks us, and wait for it without an end.

    def unary(self, kind: type[Q], work: Callable[[Q, Session], Awaitable[R]]) -> "Handler":
        async def serve(visit: Visit, context: "Context") -> R:
            return await work(await self.request(context, kind), visit.session)

        handle = self._served(
            serve if tracing.active is None else traced(kind, serve, tracing.active)
        )
        return grpc.stream_unary_rpc_method_handler(handle, reader(kind), write)

    def unary_with_call(
        self, kind: type[Q], work: Callable[[Q, Call[Q, R]], Awaitable[R]]
    ) -> "Handler":
        serve = self._with_call(kind, work)
        return grpc.stream_unary_rpc_method_handler(self._served(serve), reader(kind), write)

    def unary_stream(
        self, kind: type[Q], work: Callable[[Q, Call[Q, R]], Awaitable[None]]
    ) -> "Handler":
        serve = self._with_call(kind, work)
        return grpc.stream_stream_rpc_method_handler(self._served(serve), reader(kind), write)

    def stream_stream(
        self, kind: type[Q], work: Callable[[Call[Q, R]], Awaitable[None]]
    ) -> "Handler":
        def serve(visit: Visit, context: "Context") -> Awaitable[None]:
            return work(Call(self, context, kind, visit))

        handle = self._served(serve, stream_of=kind)
        return grpc.stream_stream_rpc_method_handler(handle, reader(kind), write)

    def _with_call(
        self, kind: type[Q], work: Callable[[Q, Call[Q, R]], Awaitable[T]]
    ) -> "Callable[[Visit, Context], Awaitable[T]]":
        async def serve(visit: Visit, context: "Context") -> T:
            request = await self.request(context, kind)
            return await work(request, Call(self, context, kind, visit))

        return serve

    async def admit(self, context: "Context") -> None:
        """For calls of other services: ends those of clients that should be known, and are not."""
        await self._served(_nothing)(None, context)

    def _served(
        self,
        serve: "Callable[[Visit, Context], Awaitable[T]]",
        *,
        stream_of: type[Message] | None = None,
    ) -> "Callable[[object, Context], Awaitable[T]]":
        """`stream_of`: the requests of a client that sends many."""

        async def enter(context: "Context") -> T:
            self._check_running()
            entrance, host = self._entrance, host_of(context)
            if reason := self._addresses.refusal(host):
                raise RefusedCallError(too_many_calls(reason))
            self._addresses.opened(host)
            client = self.clients.began(context)
            try:
                try:
                    if entrance.asks:
                        visit = await entrance.enter(
                            authorization_of(context), host, certificate=certificate_of(context)
                        )
                    else:
                        visit = entrance.anonymous(host)
                except QuotaExceededError:
                    if stream_of is not None:
                        # gRPC hides from a client that still writes why its stream ends, and how
                        # long it has to wait.
                        await self.request(context, stream_of)
                    raise
                client.entered(visit.session.principal)
                return await visit.charged(serve(visit, context))
            except (MoldauError, AuthenticationError):
                client.errors += 1
                raise
            finally:
                self._addresses.closed(host)
                self.clients.ended(client)

        return self.public(enter)

    def public(
        self, serve: "Callable[[Context], Awaitable[T]]"
    ) -> "Callable[[object, Context], Awaitable[T]]":
        """For calls of anyone, also while the broker stops: only errors are as for all others."""

        async def handle(requests: object, context: "Context") -> T:
            try:
                return await serve(context)
            except BaseException as error:
                status = self._status(error)
            await context.abort(status.code, short(status.text), status.trailers)
            raise RuntimeError("an aborted call continued")

        return handle

    async def request(self, context: "Context", kind: type[Q]) -> Q:
        """The request of a call with one. Raises QueueRefusedError, RefusedCallError."""
        task, now = current_task(), self._loop.time()
        # One timer for all: a timeout for each would cost as much as all else here.
        self._silent[task] = now + self._request_seconds_max
        if self._silence_timer is None:
            self._watch_silence(now)
        try:
            request: Q | _Malformed | object = await context.read()
        except asyncio.CancelledError:
            if task in self._silent:
                raise
            raise RefusedCallError(SILENT) from None
        finally:
            self._silent.pop(task, None)
        if request is aio.EOF:
            raise invalid("the call has no request")
        return decoded(cast("Q | _Malformed", request), kind)

    def _watch_silence(self, now: float) -> None:
        """Again when the time of the call that has been silent for longest is over."""
        first = next(iter(self._silent.values()), now + self._request_seconds_max)
        self._silence_timer = self._loop.call_later(max(first - now, 0), self._end_silent)

    def _end_silent(self) -> None:
        self._silence_timer = None
        now = self._loop.time()
        for task, until in list(self._silent.items()):
            if until > now:
                self._watch_silence(now)
                return
            del self._silent[task]
            task.cancel()

    def _check_running(self) -> None:
        if self.stopping.done():
            raise RefusedCallError(STOPPING)

    def _status(self, error: BaseException) -> ErrorStatus:
        """The status for an error. Re-raises a cancellation by the client, and what is the end of
        a call already."""
        if isinstance(error, RefusedCallError):
            return error.status
        if isinstance(error, AuthenticationError):
            return unknown_caller(error)
        if isinstance(error, MoldauError):
            return status_of(error)
        if isinstance(error, asyncio.CancelledError) and self.stopping.done():
            return STOPPING
        if isinstance(error, Exception) and not isinstance(error, aio.AbortError):
            return internal_error(error)
        raise error


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("must run in a task")
    return task


async def _nothing(visit: Visit, context: "Context") -> None:
    pass


def reader(kind: type[Q]) -> Callable[[bytes], Q | _Malformed]:
    parse = kind.FromString

    def read(data: bytes) -> Q | _Malformed:
        try:
            return parse(data)
        except DecodeError:
            return _MALFORMED

    return read


def write(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()
