"""Owns what holds for every call: bytes that are no message, refusals, defects, and the stop.

A call is a coroutine that gets a message and returns one, or gets a stream; it raises
QueueRefusedError or RefusedError. Here it becomes a handler of gRPC, which never shows a client
more than a status, its trailers and a text.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from moldau.edge.grpc.errors import STOPPING, ErrorStatus, internal_error, invalid, short, status_of
from moldau.model.errors import MoldauError

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]


class RefusedCallError(MoldauError):
    """A refusal that says all that there is to say."""

    def __init__(self, refusal: ErrorStatus) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class _Malformed:
    """In place of a message that could not be read."""


_MALFORMED: Final = _Malformed()


class Call(Generic[Q, A]):
    """One call as its handler sees it: more requests, the answers, and how long there is."""

    def __init__(self, calls: "Calls", context: "Context", kind: type[Q]) -> None:
        self._calls = calls
        self._context = context
        self._kind = kind

    async def read(self) -> Q | None:
        """The next request; None: the client has no more. Raises QueueRefusedError."""
        request: Q | _Malformed | object = await self._context.read()
        return None if request is aio.EOF else checked(cast(Q | _Malformed, request), self._kind)

    async def write(self, answer: A) -> None:
        """Returns when the client has room for it."""
        with self._calls.writing():
            await self._context.write(answer)

    @property
    def seconds_left(self) -> float | None:
        """Until the client waits no more; None: it does not say."""
        left = self._context.time_remaining()
        return None if left is None else float(left)


def checked(request: Q | _Malformed, kind: type[Q]) -> Q:
    if isinstance(request, _Malformed):
        raise invalid(f"the bytes are no {kind.DESCRIPTOR.name}")
    return request


class Calls:
    """Makes handlers, and knows who waits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the broker stops."""

    def stop(self) -> None:
        """Refuse whoever waits for something that may never come, and whoever comes."""
        if not self.stopping.done():
            self.stopping.set_result(None)
        for task in self._waiting:
            task.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is awaited inside is given up when the broker stops."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only calls wait")
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A stop does not break in: gRPC would not take the refusal behind half a message."""
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

    # ---- the four kinds

    def unary(self, kind: type[Q], work: Callable[[Q, Call[Q, A]], Awaitable[A]]) -> "Handler":
        async def handle(request: Q | _Malformed, context: "Context") -> A:
            try:
                self._check_running()
                return await work(checked(request, kind), Call(self, context, kind))
            except BaseException as error:
                refusal = self._refusal(error)
            return await _abort(context, refusal)

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=_reader(kind), response_serializer=_write
        )

    def unary_stream(
        self, kind: type[Q], work: Callable[[Q, Call[Q, A]], Awaitable[None]]
    ) -> "Handler":
        async def handle(request: Q | _Malformed, context: "Context") -> None:
            try:
                self._check_running()
                await work(checked(request, kind), Call(self, context, kind))
                return
            except BaseException as error:
                refusal = self._refusal(error)
            await _abort(context, refusal)

        return grpc.unary_stream_rpc_method_handler(
            handle, request_deserializer=_reader(kind), response_serializer=_write
        )

    def stream_stream(
        self, kind: type[Q], work: Callable[[Call[Q, A]], Awaitable[None]]
    ) -> "Handler":
        async def handle(requests: object, context: "Context") -> None:
            try:
                self._check_running()
                await work(Call(self, context, kind))
                return
            except BaseException as error:
                refusal = self._refusal(error)
            await _abort(context, refusal)

        return grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=_reader(kind), response_serializer=_write
        )

    def _check_running(self) -> None:
        if self.stopping.done():
            raise RefusedCallError(STOPPING)

    def _refusal(self, error: BaseException) -> ErrorStatus:
        """What a client is told of an error, whatever it is. Raises what is none of ours."""
        if isinstance(error, RefusedCallError):
            return error.refusal
        if isinstance(error, MoldauError):
            return status_of(error)
        if isinstance(error, asyncio.CancelledError) and self.stopping.done():
            return STOPPING
        if isinstance(error, Exception):
            return internal_error(error)
        # The client has gone.
        raise error


async def _abort(context: "Context", refusal: ErrorStatus) -> NoReturn:
    await context.abort(refusal.status, short(refusal.text), refusal.trailers)
    raise RuntimeError("an aborted call went on")


def _reader(kind: type[Q]) -> Callable[[bytes], Q | _Malformed]:
    parse = kind.FromString

    def read(data: bytes) -> Q | _Malformed:
        try:
            return parse(data)
        except DecodeError:
            return _MALFORMED

    return read


def _write(answer: Message) -> bytes:
    return answer.SerializeToString()
