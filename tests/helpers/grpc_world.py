"""The gRPC door over queues and a cluster that are told what to answer, on a real loop and port."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import uvloop
from open_sessions import broker_with, entrance_to

from moldau.api.entrance import Entrance
from moldau.edge.grpc.listener import GrpcLimits, GrpcListener
from moldau.proto.v1 import queue_pb2_grpc
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

T = TypeVar("T")


class FakeQueues:
    """Keeps what it is asked, and answers what `answers` says, or raises it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.hold: threading.Event | None = None
        """Calls wait while it is not set."""
        self.cancelled = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.asked.append((name, arguments, named))
            try:
                while self.hold is not None and not self.hold.is_set():
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            answer = self.answers[name]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


class FakeCluster:
    """Lets everybody go."""

    def __init__(self) -> None:
        self.drained: list[int] = []

    async def drain(self, broker: int) -> None:
        self.drained.append(broker)


class Door:
    """A listener, and a channel to it."""

    listener: GrpcListener
    entrance: Any
    """An Entrance, as the test made it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.loop = loop
        self.address = f"127.0.0.1:{port}"
        self.queues = FakeQueues()
        self.cluster = FakeCluster()
        self.channel = grpc.insecure_channel(self.address)
        self.stub = queue_pb2_grpc.QueueStub(self.channel)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(wait_seconds_max())


@contextmanager
def opened(
    limits: GrpcLimits | None = None,
    broker: dict[str, Any] | None = None,
    entrance: Callable[[Any], Entrance] = entrance_to,
) -> Iterator[Door]:
    """With parts of a broker beside the queues and the cluster, as a test needs them."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        (port,) = free_ports(1)

        async def make() -> Door:
            door = Door(loop, port)
            parts = {"queues": door.queues, "cluster": door.cluster, "broker_id": 1}
            door.entrance = entrance(broker_with(**parts, **(broker or {})))
            door.listener = GrpcListener(door.entrance, loop=loop, limits=limits or GrpcLimits())
            door.listener.bind("127.0.0.1", port)
            door.listener.start()
            return door

        door = asyncio.run_coroutine_threadsafe(make(), loop).result(wait_seconds_max())
        try:
            yield door
        finally:
            door.channel.close()
            door.run(door.listener.stop(0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(wait_seconds_max())
        loop.close()
