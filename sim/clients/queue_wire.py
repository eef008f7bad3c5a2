"""A small client of the queue API for the simulated world: connections, calls, and who leads.

The frames are those of sim/grpc.py, in place of gRPC's.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message
from grpc import StatusCode

from moldau.client.queue.cluster_view import ClusterView, view_of_grpc
from moldau.proto.trailers import REASON_TRAILER, UNCERTAIN_TRAILER
from moldau.proto.v1 import queue_pb2 as pb
from sim.grpc import Frame, Frames, Kind, status_of

CALL_SECONDS: Final = 6.0
_CONNECT_SECONDS: Final = 4.0
_METHODS: Final = pb.DESCRIPTOR.services_by_name["Queue"].methods_by_name


class Refused(Exception):
    """A call failed. `reason` is empty if no broker answered it."""

    def __init__(
        self, status: StatusCode, reason: str = "", text: str = "", *, is_uncertain: bool = True
    ) -> None:
        super().__init__(f"{reason or status.name}: {text}")
        self.status = status
        self.reason = reason
        self.is_uncertain = is_uncertain
        """It may have been carried out all the same."""


def _refused(frame: Frame) -> Refused:
    trailers = dict(frame.trailers)
    reason = trailers.get(REASON_TRAILER, "")
    is_uncertain = not reason or reason == "TIMED_OUT" or UNCERTAIN_TRAILER in trailers
    return Refused(status_of(frame.number), reason, frame.text, is_uncertain=is_uncertain)


class Stream:
    """One call: requests and answers."""

    def __init__(self, connection: "_ClientEnd", number: int, method: str) -> None:
        self._connection = connection
        self._number = number
        self._answer: Any = getattr(pb, _METHODS[method].output_type.name)
        self._arrived: list[Frame] = []
        self._over: Refused | Frame | None = None
        self._more = asyncio.Event()

    def received(self, frame: Frame) -> None:
        if frame.kind is Kind.MESSAGE:
            self._arrived.append(frame)
        else:
            self._over = frame
        self._more.set()

    def lost(self) -> None:
        if self._over is None:
            self._over = Refused(StatusCode.UNAVAILABLE, text="the connection is lost")
        self._more.set()

    async def write(self, request: Message) -> None:
        self._connection.send(Frame(self._number, Kind.MESSAGE, data=request.SerializeToString()))
        await self._connection.drain()

    def end(self) -> None:
        self._connection.send(Frame(self._number, Kind.END))

    async def read(self, seconds: float = CALL_SECONDS) -> Any:
        """The next answer; None: there is no more. Raises Refused."""
        asked = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                while not self._arrived and self._over is None:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            if self._connection.last_contact_at < asked:
                # As gRPC's keepalive does: nobody is there any more.
                self._connection.close()
            raise Refused(StatusCode.DEADLINE_EXCEEDED, text="no response in time") from None
        if self._arrived:
            return self._answer.FromString(self._arrived.pop(0).data)
        if isinstance(self._over, Refused):
            raise self._over
        assert self._over is not None
        if self._over.number:
            raise _refused(self._over)
        return None

    def close(self) -> None:
        """Nobody waits any more."""
        if self._over is None:
            self._connection.send(Frame(self._number, Kind.CANCEL))
        self._connection.forget(self._number)


class _ClientEnd(Frames):
    """A worker's end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[int, Stream] = {}
        self._numbers = 0
        self.is_leaving = False

    def begin(self, method: str, seconds: float | None) -> Stream:
        self._numbers += 1
        stream = self._streams[self._numbers] = Stream(self, self._numbers, method)
        waits_ms = -1 if seconds is None else int(seconds * 1000)
        self.send(Frame(self._numbers, Kind.CALL, text=method, number=waits_ms))
        if self.is_closed:
            stream.lost()
        return stream

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def received(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self.send(Frame(0, Kind.PONG))
        elif frame.kind is Kind.LEAVING:
            self.is_leaving = True
        elif (stream := self._streams.get(frame.call)) is not None:
            stream.received(frame)

    def lost(self) -> None:
        for stream in self._streams.values():
            stream.lost()


class QueueWire:
    """A client of one cluster, as one process has it."""

    def __init__(self, seeds: Callable[[], list[str]], rng: random.Random) -> None:
        self._seeds = seeds
        self._rng = rng
        self._connections: dict[str, _ClientEnd] = {}
        self._opening: dict[str, asyncio.Task[_ClientEnd]] = {}
        self.view = ClusterView()

    async def _connection(self, address: str) -> _ClientEnd:
        """Raises Refused."""
        found = self._connections.get(address)
        if found is not None and not found.is_closed and not found.is_leaving:
            return found
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    def _opened(self, address: str, task: "asyncio.Task[_ClientEnd]") -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            # The caller may have ended: then nothing else checks the outcome.
            task.exception()

    async def _open(self, address: str) -> _ClientEnd:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(_ClientEnd, host, int(port))
        except (OSError, TimeoutError) as error:
            raise Refused(
                StatusCode.UNAVAILABLE, text=f"not reached: {error}", is_uncertain=False
            ) from None
        self._connections[address] = connection
        return connection

    async def stream(self, address: str, method: str, seconds: float | None = None) -> Stream:
        """Begin a call; the caller closes it. Raises Refused."""
        return (await self._connection(address)).begin(method, seconds)

    async def call(
        self, address: str, method: str, request: Message, seconds: float = CALL_SECONDS
    ) -> Any:
        """One request, one answer. Raises Refused."""
        stream = await self.stream(address, method, seconds)
        try:
            await stream.write(request)
            stream.end()
            return await stream.read(seconds)
        finally:
            stream.close()

    def anybody(self) -> str:
        """Whom to ask what each broker can answer."""
        return self._rng.choice(self._seeds())

    async def call_any(self, method: str, request: Message, seconds: float = CALL_SECONDS) -> Any:
        """Raises Refused."""
        return await self.call(self.anybody(), method, request, seconds)

    async def refresh(self) -> None:
        """Learn who leads; raises Refused."""
        self.view = await self._view_of(self._rng.choice(self._seeds()))

    async def refresh_newest(self) -> None:
        """Ask all brokers, and believe the one that knows most: what one of them does not know may
        be there all the same, since its metadata may be far behind. Raises Refused."""
        views = [await self._view_of(address) for address in self._seeds()]
        self.view = max(views, key=lambda view: view.version)

    async def _view_of(self, address: str) -> ClusterView:
        answer = await self.call(address, "Topology", pb.TopologyRequest(), 3.0)
        return view_of_grpc(answer, address)

    def drop(self) -> None:
        """All connections, at once and without a word."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
