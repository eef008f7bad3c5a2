"""Owns a consumer of the queue API for tests: it beats in a thread, and works as it is told."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, cast

import grpc

from moldau.proto.trailers import REASON_TRAILER
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1.queue_pb2_grpc import QueueStub
from moldau.testing.waiting import wait_seconds_max

CALL_SECONDS = wait_seconds_max()


def reason_of(error: grpc.RpcError) -> str:
    """The reason by name, from the trailers of a refused call."""
    trailers: dict[str, Any] = dict(cast(Any, error).trailing_metadata() or ())
    return str(trailers.get(REASON_TRAILER, ""))


def door(address: str) -> tuple[grpc.Channel, Any]:
    channel = grpc.insecure_channel(address)
    return channel, QueueStub(channel)


class Refused(Exception):
    """A call was refused; `reason` says why."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(f"{reason_of(error)}: {error.details()}")
        self.reason = reason_of(error)
        self.status = error.code()


class Worker:
    """One consumer at one broker. `beats` False: it is silent from the beginning."""

    def __init__(self, address: str, group: str, *topics: str, beats: bool = True, **asked: Any):
        self.group = group
        self.address = address
        self._channel, self._stub = door(address)
        self.connected = self._ask(
            self._stub.Connect, pb.ConnectRequest(group=group, topics=topics, **asked)
        )
        self.name = self.connected.consumer_id
        self.assignment = self.connected.assignment
        self.lost: str | None = None
        """Why heartbeats are refused."""
        self._elsewhere: dict[str, Elsewhere] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if beats:
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()

    # ---- heartbeats

    def _beat(self) -> None:
        requests: queue.Queue[pb.HeartbeatRequest | None] = queue.Queue()

        def sent() -> Iterator[pb.HeartbeatRequest]:
            while (request := requests.get()) is not None:
                yield request

        interval = self.connected.heartbeat_interval_ms / 1000
        try:
            answers = self._stub.Heartbeat(sent())
            while not self._stop.is_set():
                requests.put(self._heartbeat())
                answer = next(answers)
                interval = answer.heartbeat_interval_ms / 1000
                if answer.HasField("assignment"):
                    self.assignment = answer.assignment
                    continue
                self._stop.wait(interval)
        except grpc.RpcError as error:
            self.lost = reason_of(error) or str(error.code())
        finally:
            requests.put(None)

    def _heartbeat(self) -> pb.HeartbeatRequest:
        owned: dict[str, list[int]] = {}
        for one in self.assignment.partitions:
            owned.setdefault(one.topic, []).append(one.partition)
        return pb.HeartbeatRequest(
            group=self.group,
            consumer_id=self.name,
            epoch=self.assignment.epoch,
            owned=[pb.TopicPartitions(topic=t, partitions=p) for t, p in owned.items()],
        )

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self.assignment.partitions}

    # ---- messages

    def poll(self, count: int = 100, wait_ms: int = 0, **asked: Any) -> list[pb.Message]:
        request = pb.PollRequest(
            group=self.group, consumer_id=self.name, max_messages=count, wait_ms=wait_ms, **asked
        )
        return list(self._ask(self._stub.Poll, request).messages)

    def ack(self, *messages: pb.Message) -> list[str]:
        """The reasons of those that are refused."""
        return self._settled(
            self._stub.Ack,
            pb.AckRequest(
                group=self.group, consumer_id=self.name, tokens=[one.token for one in messages]
            ),
        )

    def nack(self, *messages: pb.Message, **asked: Any) -> list[str]:
        tokens = [one.token for one in messages]
        return self._settled(
            self._stub.Nack,
            pb.NackRequest(group=self.group, consumer_id=self.name, tokens=tokens, **asked),
        )

    def extend(self, *messages: pb.Message, visibility_ms: int) -> list[str]:
        tokens = [one.token for one in messages]
        return self._settled(
            self._stub.Extend,
            pb.ExtendRequest(
                group=self.group,
                consumer_id=self.name,
                tokens=tokens,
                visibility_ms=visibility_ms,
            ),
        )

    def _settled(self, method: Any, request: Any) -> list[str]:
        answer = self._ask(method, request)
        assert answer.done + len(answer.refused) == len(request.tokens)
        return [pb.Reason.Name(one.reason) for one in answer.refused]

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=wait_seconds_max())
        except grpc.RpcError as error:
            raise Refused(error) from None

    def at(self, address: str) -> "Elsewhere":
        """The same consumer, asking another broker."""
        if address not in self._elsewhere:
            self._elsewhere[address] = Elsewhere(self, address)
        return self._elsewhere[address]

    # ---- the end

    def vanish(self) -> None:
        """It is not heard of any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_seconds_max())
            self._thread = None

    def disconnect(self) -> None:
        self.vanish()
        self._ask(
            self._stub.Disconnect,
            pb.DisconnectRequest(group=self.group, consumer_id=self.name),
        )

    def close(self) -> None:
        self.vanish()
        for elsewhere in self._elsewhere.values():
            elsewhere.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Elsewhere(Worker):
    """A consumer that is connected, at another broker than the one it beats at, which owns it."""

    def __init__(self, worker: Worker, address: str) -> None:
        self.group, self.name, self.address = worker.group, worker.name, address
        self._channel, self._stub = door(address)

    def close(self) -> None:
        self._channel.close()
