"""Senders over the queue API: one message or many at a time, some of them for later."""

import random
from typing import Final

from moldau.proto.v1 import queue_pb2 as pb
from sim.clients.queue_wire import QueueWire, Refused
from sim.clients.queue_worker import TOPIC, Board
from sim.machine import SimClock
from sim.process import ClientProcess
from sim.scene import Scene

_PASSING: Final = frozenset({"", "UNAVAILABLE", "NOT_LEADER", "TIMED_OUT", "BUSY"})
_LATER_SHARE: Final = 0.1
_STREAM_COUNT_MAX: Final = 4


class Sender:
    """Sends each message once: what is not answered may be there, or not."""

    def __init__(
        self, scene: Scene, process: ClientProcess, board: Board, *, pause_seconds: float
    ) -> None:
        self._scene = scene
        self._board = board
        self._name = process.name
        self._rng: random.Random = process.rng
        self._wire = QueueWire(board.seeds, process.rng)
        self._clock = SimClock(process.loop)
        self._pause_seconds = pause_seconds
        self._sent = 0
        board.senders += 1

    async def run(self) -> None:
        while not self._scene.is_over:
            try:
                if self._rng.random() < 0.5:
                    await self._one()
                else:
                    await self._many()
            except Refused as error:
                self._check(error.reason, str(error))
            await self._scene.pause(self._rng, self._pause_seconds)
        self._wire.drop()
        self._board.senders -= 1

    def _message(self) -> pb.OutgoingMessage:
        number, self._sent = self._sent, self._sent + 1
        value = f"{self._name}:{number}"
        message = pb.OutgoingMessage(value=value.encode())
        if self._rng.random() < 0.3:
            message.key = f"k{self._rng.randrange(10)}".encode()
        elif self._rng.random() < 0.3:
            message.partition = self._rng.randrange(self._board.partitions)
        if self._rng.random() < _LATER_SHARE:
            ahead_ms = self._rng.randrange(8000)
            message.deliver_at_ms = self._clock.wall_ms() + ahead_ms
            self._board.later[value] = self._scene.history.now() + ahead_ms * 1000
        self._board.sent.add(value)
        return message

    async def _one(self) -> None:
        message = self._message()
        request = pb.SendRequest(topic=TOPIC, message=message, timeout_ms=5000)
        reply = await self._wire.call_any("Send", request, 10.0)
        self._acked(message, reply.partition, reply.offset)

    async def _many(self) -> None:
        """Several requests ahead, on one stream."""
        stream = await self._wire.stream(self._wire.anybody(), "SendBatch")
        try:
            requests = [
                pb.SendBatchRequest(
                    topic=TOPIC,
                    messages=[self._message() for _ in range(self._rng.randint(1, 5))],
                    timeout_ms=5000,
                )
                for _ in range(self._rng.randint(1, _STREAM_COUNT_MAX))
            ]
            for request in requests:
                await stream.write(request)
            stream.end()
            for request in requests:
                reply = await stream.read(10.0)
                if reply is None:
                    self._scene.violation(f"{self._name}: a stream of sends ended too early")
                    return
                for failure in reply.failures:
                    self._check(pb.Reason.Name(failure.reason), failure.message)
                places = zip(request.messages, reply.partitions, reply.offsets, strict=False)
                for message, partition, offset in places:
                    if partition >= 0:
                        self._acked(message, partition, offset)
        finally:
            stream.close()

    def _acked(self, message: pb.OutgoingMessage, partition: int, offset: int) -> None:
        self._scene.count("sent")
        self._scene.add("x-sent", tp=f"{TOPIC}/{partition}", o=offset, v=message.value.decode())

    def _check(self, reason: str, text: str) -> None:
        if reason:
            self._scene.count(f"sent {reason}")
        if reason not in _PASSING:
            self._scene.violation(f"{self._name} could not send: {reason} {text}")
