"""Workers of queue groups and of ordered groups: they come and go, crash, dawdle and fail.

See what they record in faults/leases.py and faults/ordered.py; `since` is when a poll was sent.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.proto.v1 import queue_pb2 as pb
from sim.clients.queue_wire import QueueWire, Refused
from sim.process import ClientProcess
from sim.scene import Scene

TOPIC: Final = "work"
GROUP: Final = "workers"
ORDERED_GROUP: Final = "ordered-workers"
ATTEMPTS_MAX: Final = 5
VISIBILITY_MS: Final = 2_000
POISON: Final = "cannot be done"
_BACKOFF_MS: Final = 50
_PAUSE_SECONDS: Final = 0.2
_NOTHING_DONE: Final = frozenset({"UNKNOWN_CONSUMER", "NOT_LEADER", "UNKNOWN_GROUP"})
_DOUBTFUL: Final = frozenset({"UNAVAILABLE", "TIMED_OUT", "INTERNAL", "BUSY"})
_PASSING: Final = frozenset(
    {"", "UNKNOWN_CONSUMER", "NOT_LEADER", "UNAVAILABLE", "TIMED_OUT", "BUSY", "NOT_ASSIGNED"}
)
"""What brokers may say while things break; anything else is a mistake of theirs, or of ours."""


def poison(place: str, offset: int) -> str:
    """Why a message cannot be worked on; empty if it can."""
    return POISON if offset % 23 == 7 else ""


@dataclass
class Board:
    """What those who work on the queue know of each other."""

    seeds: Callable[[], list[str]]
    """Where brokers are now."""
    partitions: int
    senders: int = 0
    """That have not finished."""
    is_drained: bool = False
    """Nothing is open any more: workers go home."""
    sent: set[str] = field(default_factory=set)
    """The values of all messages."""
    later: dict[str, int] = field(default_factory=dict)
    """When some of them are to be delivered at the earliest, in the history's time."""


class Evicted(Exception):
    """This consumer is not a member any more: it connects again."""


class Worker:
    """One consumer after the other, until the queue is empty."""

    group = GROUP

    def __init__(self, scene: Scene, process: ClientProcess, board: Board) -> None:
        self._scene = scene
        self._board = board
        self._name = process.name
        self._rng: random.Random = process.rng
        self._wire = QueueWire(board.seeds, process.rng)
        self._consumer = ""
        self._epoch = 0
        self._leaders: dict[str, list[int]] = {}
        """Partitions by the address of their leader."""
        self._owned: list[int] = []
        self._interval_seconds = 1.0
        self._is_evicted = False

    # ---- membership

    async def run(self) -> None:
        while not self._board.is_drained:
            try:
                await self._session()
            except Evicted:
                self._scene.count("evicted")
            except Refused as error:
                self._check(error)
            await self._scene.pause(self._rng, _PAUSE_SECONDS)
        self._wire.drop()

    async def _session(self) -> None:
        """Raises Refused, Evicted."""
        await self._connect()
        heartbeats = asyncio.get_running_loop().create_task(self._keep_beating())
        try:
            while not self._board.is_drained:
                await self._work()
                fate = 1.0 if self._scene.is_over else self._rng.random()
                if fate < 0.01:
                    self._scene.count("worker crashes")
                    self._wire.drop()
                    return
                if fate < 0.02:
                    break
        finally:
            heartbeats.cancel()
            await asyncio.wait([heartbeats])
        left = pb.DisconnectRequest(group=self.group, consumer_id=self._consumer)
        await self._wire.call_any("Disconnect", left)

    def _connect_request(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(
            group=self.group,
            topics=[TOPIC],
            mode=pb.QUEUE,
            client_id=self._name,
            session_timeout_ms=6000,
            settings=pb.QueueSettings(
                visibility_ms=VISIBILITY_MS,
                attempts_max=ATTEMPTS_MAX,
                backoff_ms=_BACKOFF_MS,
                backoff_ms_max=_BACKOFF_MS * 4,
            ),
        )

    async def _connect(self) -> None:
        reply = await self._wire.call_any("Connect", self._connect_request())
        self._consumer = reply.consumer_id
        self._is_evicted = False
        self._interval_seconds = reply.heartbeat_interval_ms / 1000
        self._scene.add("x-connected", w=self._name, c=self._consumer)
        self._take(reply.assignment)

    def _take(self, assignment: pb.Assignment) -> None:
        self._epoch = assignment.epoch
        self._owned = sorted(each.partition for each in assignment.partitions)
        leaders: dict[str, list[int]] = defaultdict(list)
        for each in assignment.partitions:
            if each.leader_address:
                leaders[each.leader_address].append(each.partition)
        self._leaders = dict(leaders)

    async def _keep_beating(self) -> None:
        """Until it is evicted."""
        while True:
            try:
                await self._heartbeat_at(self._wire.anybody())
            except Refused as error:
                self._check(error)
                if error.reason == "UNKNOWN_CONSUMER":
                    self._is_evicted = True
                    return
            await self._scene.pause(self._rng, _PAUSE_SECONDS)

    async def _heartbeat_at(self, address: str) -> None:
        stream = await self._wire.stream(address, "Heartbeat")
        try:
            while True:
                await stream.write(
                    pb.HeartbeatRequest(
                        group=self.group,
                        consumer_id=self._consumer,
                        epoch=self._epoch,
                        owned=self._owned_partitions(),
                    )
                )
                reply = await stream.read(5.0)
                if reply is None:
                    return
                if reply.HasField("assignment"):
                    self._take(reply.assignment)
                await asyncio.sleep(min(self._interval_seconds, 0.5))
        finally:
            stream.close()

    def _owned_partitions(self) -> list[pb.TopicPartitions]:
        """Members of a queue own nothing."""
        return []

    def _check(self, error: Refused) -> None:
        if error.reason not in _PASSING:
            self._scene.violation(f"{self._name} was refused: {error}")

    # ---- work

    async def _work(self) -> None:
        """At each leader once. Raises Refused, Evicted."""
        leaders = list(self._leaders)
        if not leaders:
            await self._scene.pause(self._rng, _PAUSE_SECONDS)
        self._rng.shuffle(leaders)
        for address in leaders:
            if self._is_evicted:
                break
            try:
                await self._take_some(address)
            except Refused as error:
                self._check(error)
                if error.reason == "UNKNOWN_CONSUMER":
                    raise Evicted from None
                await self._scene.pause(self._rng, _PAUSE_SECONDS)
        if self._is_evicted:
            raise Evicted

    async def _poll(self, address: str, counts: tuple[int, ...]) -> tuple[Any, int]:
        since = self._scene.history.now()
        request = pb.PollRequest(
            group=self.group,
            consumer_id=self._consumer,
            max_messages=self._rng.choice(counts),
            wait_ms=self._rng.choice((0, 200, 1500)),
        )
        if self._rng.random() < 0.2:
            request.partitions.add(topic=TOPIC, partitions=self._leaders.get(address, []))
        # Who gives up early loses what it is given: then the lease ends, and it comes again.
        seconds = 0.3 if self._rng.random() < 0.01 else 6.0
        return await self._wire.call(address, "Poll", request, seconds), since

    async def _take_some(self, address: str) -> None:
        reply, since = await self._poll(address, (1, 5, 20))
        messages: list[pb.Message] = list(reply.messages)
        for message in messages:
            self._add("x-got", message, since=since, v=message.value.decode())
        if not messages:
            return
        await self._toil(address, messages)
        bad = [each for each in messages if self._fails(each)]
        good = [each for each in messages if each not in bad]
        if good:
            await self._settle("x-acked", address, good)
        if bad:
            await self._settle("x-nacked", address, bad)

    def _fails(self, message: pb.Message) -> bool:
        if poison(message.topic, message.offset):
            return True
        # By chance, but not so often that it is given up.
        return message.attempt < ATTEMPTS_MAX - 1 and self._rng.random() < 0.03

    async def _toil(self, address: str, messages: list[pb.Message]) -> None:
        chance = 1.0 if self._scene.is_over else self._rng.random()
        if chance < 0.02:
            self._scene.count("leases outlived")
            await asyncio.sleep(VISIBILITY_MS / 1000 * 1.5)
        elif chance < 0.05:
            await self._extend(address, messages)
            await asyncio.sleep(VISIBILITY_MS / 1000 * 1.5)
        else:
            await asyncio.sleep(self._rng.random() * 0.02)

    async def _extend(self, address: str, messages: list[pb.Message]) -> None:
        request = pb.ExtendRequest(
            group=self.group,
            consumer_id=self._consumer,
            tokens=[each.token for each in messages],
            visibility_ms=VISIBILITY_MS * 2,
        )
        try:
            await self._wire.call(address, "Extend", request)
            self._scene.count("extended")
        except Refused as error:
            self._check(error)

    async def _settle(self, op: str, address: str, messages: list[pb.Message]) -> None:
        """Asks again, wherever the partition is led by then, until somebody says what was done."""
        if op == "x-acked":
            for message in messages:
                self._add("x-acking", message)
        doubtful: set[bytes] = set()
        tries = self._rng.choice((1, 3, 8))
        while messages:
            tries -= 1
            answers = await self._try_settle(op, address, messages)
            left: list[pb.Message] = []
            for message, answer in zip(messages, answers, strict=True):
                if answer == "unknown":
                    doubtful.add(message.token)
                if answer in ("unknown", "NOT_LEADER") and tries > 0 and not self._is_evicted:
                    left.append(message)
                    continue
                if message.token in doubtful and answer != "done":
                    # Refused now; but perhaps because it was done the first time.
                    answer = "unknown"
                self._add(op, message, r=answer)
                self._scene.count(f"{op[2:]} {answer}")
                if op == "x-acked" and answer == "done" and self._rng.random() < 0.05:
                    await self._ack_again(address, message)
            messages = left
            if left:
                await self._scene.pause(self._rng, _PAUSE_SECONDS)
                address = await self._led_now(left[0], address)

    async def _ack_again(self, address: str, message: pb.Message) -> None:
        """As somebody does who has not heard of the first answer."""
        (answer,) = await self._try_settle("x-acked", address, [message])
        self._scene.count(f"acked again {answer}")
        if answer not in ("SETTLED", "unknown", "NOT_LEADER", "UNKNOWN_CONSUMER"):
            place = f"{message.topic}/{message.partition}@{message.offset}"
            self._scene.violation(f"{self._name} acked {place} again: {answer}")

    async def _led_now(self, message: pb.Message, before: str) -> str:
        try:
            await self._wire.refresh()
        except Refused as error:
            self._check(error)
        return self._wire.view.token_address(message.token) or before

    async def _try_settle(self, op: str, address: str, messages: list[pb.Message]) -> list[str]:
        """What was answered about each."""
        tokens = [message.token for message in messages]
        whose: dict[str, Any] = {
            "group": self.group,
            "consumer_id": self._consumer,
            "tokens": tokens,
        }
        try:
            if op == "x-acked":
                reply = await self._wire.call(address, "Ack", pb.AckRequest(**whose))
            else:
                request = pb.NackRequest(**whose, reason=POISON)
                reply = await self._wire.call(address, "Nack", request)
        except Refused as error:
            self._check(error)
            if error.reason == "UNKNOWN_CONSUMER":
                self._is_evicted = True
            is_nothing = error.reason in _NOTHING_DONE
            return [error.reason if is_nothing else "unknown"] * len(messages)
        refused = {each.index: pb.Reason.Name(each.reason) for each in reply.refused}
        answers = [refused.get(index, "done") for index in range(len(messages))]
        return ["unknown" if answer in _DOUBTFUL else answer for answer in answers]

    def _add(self, op: str, message: pb.Message, **fields: Any) -> None:
        place = f"{message.topic}/{message.partition}"
        self._scene.add(op, w=self._name, tp=place, o=message.offset, a=message.attempt, **fields)


class OrderedWorker(Worker):
    """The same in an ordered group: it acks the last of what it got from each partition."""

    group = ORDERED_GROUP

    def _connect_request(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(
            group=self.group,
            topics=[TOPIC],
            mode=pb.ORDERED,
            client_id=self._name,
            session_timeout_ms=6000,
        )

    def _owned_partitions(self) -> list[pb.TopicPartitions]:
        return [pb.TopicPartitions(topic=TOPIC, partitions=self._owned)]

    async def _take_some(self, address: str) -> None:
        reply, since = await self._poll(address, (5, 20))
        last: dict[int, pb.Message] = {}
        for message in reply.messages:
            value = message.value.decode()
            self._add("x-ordered-got", message, since=since, v=value)
            last[message.partition] = message
        if not last:
            return
        await asyncio.sleep(self._rng.random() * 0.02)
        messages = list(last.values())
        op = "x-ordered-nacked" if self._rng.random() < 0.02 else "x-acked"
        answers = await self._try_settle(op, address, messages)
        if op == "x-acked":
            for message, answer in zip(messages, answers, strict=True):
                self._add("x-ordered-acked", message, r=answer)
                self._scene.count(f"ordered acks {answer}")
