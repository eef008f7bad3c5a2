"""A stand-in for gRPC's transport: calls as frames over a simulated connection.

gRPC's core has threads and sockets of its own, so it cannot be simulated. Everything above it can:
the broker's own handlers answer, with a context that does what they use of grpc.aio's.
"""

import asyncio
import struct
from asyncio import AbstractEventLoop
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from grpc import StatusCode, aio
from msgspec import Struct

from moldau.api.connections import ConnectionShown
from moldau.api.entrance import Entrance
from moldau.edge.grpc.calls import Calls
from moldau.edge.grpc.service import handlers
from moldau.model.topology import Endpoint
from moldau.net.sockets import Sockets

if TYPE_CHECKING:
    from moldau.edge.grpc.calls import Handler

_LENGTH: Final = struct.Struct(">I")
_SILENCE_SECONDS: Final = 30.0
_PONG_SECONDS: Final = 20.0
"""As the real server does: an idle client is probed, and disconnected if it does not respond."""


class Kind(IntEnum):
    """Of a frame."""

    CALL = 0
    """`text` is the method, `number` the milliseconds that the client waits, or -1."""
    MESSAGE = 1
    END = 2
    """The client has no more messages."""
    STATUS = 3
    """The call is over: `number` is a status, `text` what it says."""
    CANCEL = 4
    """The client waits no more."""
    PING = 5
    PONG = 6
    LEAVING = 7
    """The server takes no more calls on this connection."""


class Frame(Struct, array_like=True, frozen=True):
    """What goes over a connection; `call` tells its calls apart."""

    call: int
    kind: Kind
    text: str = ""
    number: int = 0
    data: bytes = b""
    trailers: tuple[tuple[str, str], ...] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Frame).decode
_STATUS_OF: Final = {status.value[0]: status for status in StatusCode}


def status_of(number: int) -> StatusCode:
    return _STATUS_OF[number]


class Frames(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._room: asyncio.Future[None] | None = None
        """Not None: there is none, and this is done when there is."""
        self.is_closed = False
        self.last_contact_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.last_contact_at = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.last_contact_at = asyncio.get_running_loop().time()
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer)
            if len(buffer) < _LENGTH.size + size:
                return
            frame = _decode(bytes(buffer[_LENGTH.size : _LENGTH.size + size]))
            del buffer[: _LENGTH.size + size]
            self.received(frame)

    def received(self, frame: Frame) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is closed."""
        raise NotImplementedError

    def send(self, frame: Frame) -> None:
        """Sent in the order of the calls; nothing, where there is no connection any more."""
        if not self.is_closed and self._transport is not None:
            data = _encode(frame)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def drain(self) -> None:
        """Until there is room for more."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.resume_writing()
        self.lost()

    def close(self) -> None:
        """At once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """When all is sent."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()


class _Context:
    """What handlers use of grpc.aio.ServicerContext."""

    def __init__(
        self, connection: "_ServerEnd", number: int, handler: "Handler", seconds: float | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._number = number
        self._handler: Any = handler
        self._deadline = None if seconds is None else self._loop.time() + seconds
        self._requests: deque[bytes] = deque()
        self._has_end = False
        self._more = asyncio.Event()
        self.aborted: Frame | None = None

    # ---- from the client

    def arrived(self, data: bytes | None) -> None:
        """None: there is no more."""
        if data is None:
            self._has_end = True
        else:
            self._requests.append(data)
        self._more.set()

    # ---- for the handler

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def read(self) -> Any:
        while not self._requests:
            if self._has_end:
                return aio.EOF
            self._more.clear()
            await self._more.wait()
        return self._handler.request_deserializer(self._requests.popleft())

    async def write(self, answer: Any) -> None:
        data = self._handler.response_serializer(answer)
        self._connection.send(Frame(self._number, Kind.MESSAGE, data=data))
        await self._connection.drain()

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        self.aborted = Frame(
            self._number,
            Kind.STATUS,
            text=details,
            number=code.value[0],
            trailers=tuple(trailing_metadata),
        )
        raise aio.AbortError("the call is aborted")


class _ServerEnd(Frames):
    """The broker's end of a connection."""

    def __init__(self, server: "SimGrpcServer") -> None:
        super().__init__()
        self._server = server
        self._calls: dict[int, tuple[asyncio.Task[None], _Context]] = {}
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections[self] = None
        self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        silent = loop.time() - self.last_contact_at
        if silent >= _SILENCE_SECONDS + _PONG_SECONDS:
            self.close()
            return
        if silent >= _SILENCE_SECONDS:
            self.send(Frame(0, Kind.PING))
            self._watch = loop.call_later(_PONG_SECONDS, self._look)
        else:
            self._watch = loop.call_later(_SILENCE_SECONDS - silent + 0.001, self._look)

    def received(self, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            self._begin(frame)
            return
        task, context = self._calls.get(frame.call, (None, None))
        if task is None or context is None:
            # It is over already.
            return
        if frame.kind is Kind.MESSAGE:
            context.arrived(frame.data)
        elif frame.kind is Kind.END:
            context.arrived(None)
        elif frame.kind is Kind.CANCEL:
            task.cancel()

    def _begin(self, frame: Frame) -> None:
        handler = self._server.handlers.get(frame.text)
        if handler is None or self._server.is_stopping:
            status = StatusCode.UNIMPLEMENTED if handler is None else StatusCode.UNAVAILABLE
            self.send(Frame(frame.call, Kind.STATUS, text="not here", number=status.value[0]))
            return
        loop = asyncio.get_running_loop()
        seconds = None if frame.number < 0 else frame.number / 1000
        context = _Context(self, frame.call, handler, seconds)
        task = loop.create_task(self._run(frame.call, handler, context))
        self._calls[frame.call] = (task, context)
        timer = None if seconds is None else loop.call_later(seconds, task.cancel)

        def over(_: object) -> None:
            self._calls.pop(frame.call, None)
            if timer is not None:
                timer.cancel()

        task.add_done_callback(over)

    async def _run(self, number: int, handler: Any, context: _Context) -> None:
        try:
            if handler.response_streaming:
                await handler.stream_stream(None, context)
            else:
                await context.write(await handler.stream_unary(None, context))
            status = Frame(number, Kind.STATUS)
        except aio.AbortError:
            assert context.aborted is not None
            status = context.aborted
        except asyncio.CancelledError:
            status = Frame(number, Kind.STATUS, number=StatusCode.CANCELLED.value[0])
        self.send(status)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for task, _ in self._calls.values()]

    def lost(self) -> None:
        self._server.connections.pop(self, None)
        if self._watch is not None:
            self._watch.cancel()
        for task in self.tasks():
            task.cancel()


class SimGrpcServer:
    """The gRPC server of a simulated broker; see GrpcServer in moldau.server.machine."""

    def __init__(self, loop: AbstractEventLoop, entrance: Entrance, sockets: Sockets) -> None:
        self._loop = loop
        self._sockets = sockets
        self._calls = Calls(entrance)
        self.handlers = handlers(self._calls)
        self.connections: dict[_ServerEnd, None] = {}
        self.is_stopping = False
        self._socket: Any = None
        self._serving: asyncio.Task[asyncio.Server] | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        self._socket = self._sockets.bound(host, port)
        name, number = self._socket.getsockname()
        return str(name), int(number)

    def share(self, address: Endpoint) -> None:
        """A simulated broker is alone on its machine."""

    def start(self) -> None:
        self._socket.listen(256)
        self._serving = self._loop.create_task(
            self._loop.create_server(lambda: _ServerEnd(self), sock=self._socket)
        )

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        return self._calls.clients.open_connections(most, wall_ms)

    async def stop(self, grace_seconds: float) -> None:
        """Refuse who waits and who comes, let calls finish for so long, then cut them."""
        self.is_stopping = True
        if self._serving is not None:
            (await self._serving).close()
        elif self._socket is not None:
            self._socket.close()
        for connection in self.connections:
            connection.send(Frame(0, Kind.LEAVING))
        self._calls.stop()
        if grace_seconds and (left := self._tasks()):
            await asyncio.wait(left, timeout=grace_seconds)
        if left := self._tasks():
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        for connection in list(self.connections):
            connection.finish()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for connection in self.connections for task in connection.tasks()]
