"""Consumers as a simulation of groups drives them, a step at a time: of the newer protocol, and
classic ones, which let go of everything before they join again, or keep what they read."""

import struct
from collections.abc import Iterable
from typing import Any

from moldau.groups.consumer_protocol import assignment_bytes, read_assignment, read_subscription
from moldau.model.errors import ErrorCode

START_OVER = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}
TRY_AGAIN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.NOT_COORDINATOR,
}


class Consumer:
    """What a client of the newer protocol does. `reads` is what it fetches from, and no other may
    at the same time."""

    def __init__(self, name: str, topics: tuple[str, ...], instance: str | None = None) -> None:
        self.name = name
        self.topics = topics
        self.instance = instance
        self.epoch = 0
        self.reads: dict[bytes, frozenset[int]] = {}
        self.waiting: int | None = None
        self.tells = True

    def step(self, world: Any) -> None:
        if self.waiting is not None:
            reply = world.reply(self.waiting)
            if reply is None:
                return
            self.waiting = None
            self.heard(reply)
            return
        fields: dict[str, Any] = {"instance_id": self.instance}
        if self.epoch == 0:
            self.reads = {}
            fields["topics"] = self.topics
        elif self.tells:
            fields["owned"] = self.reads
        self.tells = False
        self.waiting = world.send_beat(self.name, self.epoch, **fields)

    def heard(self, reply: Any) -> None:
        if reply.error in START_OVER:
            # What it must abandon it abandons before it asks again.
            self.epoch, self.reads = 0, {}
        elif reply.error is not ErrorCode.NONE:
            assert reply.error in TRY_AGAIN, reply
            self.tells = True
        else:
            self.epoch = reply.member_epoch
            if reply.assignment is not None and reply.assignment != self.reads:
                self.reads = dict(reply.assignment)
                self.tells = True

    def leave(self, world: Any) -> None:
        world.send_beat(self.name, -1)

    def lost_connection(self) -> None:
        self.waiting, self.tells = None, True


class ClassicConsumer:
    """What a client of the classic protocol does, also as the leader of its group."""

    def __init__(
        self, name: str, topics: tuple[str, ...], instance: str | None, *, keeps: bool
    ) -> None:
        self.client_id = name
        self.topics = topics
        self.instance = instance
        self.keeps = keeps
        """What it reads, over a rebalance: a cooperative client."""
        self.name = ""
        """The group makes it, from the client's."""
        self.epoch = -1
        """Its generation."""
        self.phase = "join"
        self.reads: dict[bytes, frozenset[int]] = {}
        self.waiting: int | None = None

    def step(self, world: Any) -> None:
        if self.waiting is not None:
            reply = world.reply(self.waiting)
            if reply is not None:
                self.waiting = None
                self._heard(world, reply)
        elif self.phase == "join":
            if not self.keeps:
                self.reads = {}
            protocol = "cooperative-sticky" if self.keeps else "range"
            self.waiting = world.send_join(
                self.name,
                client_id=self.client_id,
                instance_id=self.instance,
                member_id_required=True,
                session_timeout_ms=45_000,
                protocols=((protocol, subscription(self.topics, self._names(world))),),
            )
        else:
            error = world.heartbeat(self.name, self.epoch, instance_id=self.instance)
            self._is_fine(error)

    def _is_fine(self, error: ErrorCode) -> bool:
        if error is ErrorCode.NONE:
            return True
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.name = ""
        if error in START_OVER or error is ErrorCode.ILLEGAL_GENERATION:
            self.reads, self.epoch = {}, -1
        else:
            # One that aiokafka, for one, does not expect as an answer to a join.
            assert self.waiting is None
            assert self.phase != "join" or error is not ErrorCode.REBALANCE_IN_PROGRESS
            assert error in {
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.MEMBER_ID_REQUIRED,
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                *TRY_AGAIN,
            }, error
        self.phase = "join"
        return False

    def _heard(self, world: Any, reply: Any) -> None:
        is_fine = self._is_fine(reply.error)
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.name = reply.member_id
        if not is_fine:
            return
        if self.phase == "join":
            self.name, self.epoch = reply.member_id, reply.generation
            self.phase = "sync"
            plan = self._plan(world, reply.members) if reply.leader == self.name else {}
            self.waiting = world.send_sync(
                self.name,
                self.epoch,
                plan,
                instance_id=self.instance,
                protocol_type=reply.protocol_type,
                protocol_name=reply.protocol_name,
            )
            return
        read = read_assignment(reply.assignment)
        assert read is not None
        given = {world.topics.topic(name).topic_id: some for name, some in read.partitions.items()}
        is_less = any(some - given.get(topic, frozenset()) for topic, some in self.reads.items())
        self.reads = given
        # A cooperative client that has let go of something joins again to say so.
        self.phase = "join" if self.keeps and is_less else "stable"

    def _plan(self, world: Any, members: Iterable[Any]) -> dict[str, bytes]:
        """Round robin; what another still reads is given on in the next generation."""
        wishes: dict[str, Any] = {
            one.member_id: read_subscription(one.subscription) for one in members
        }
        owners = {
            (topic, index): member_id
            for member_id, wish in wishes.items()
            for topic, some in wish.owned.items()
            for index in some
        }
        plan: dict[str, dict[str, frozenset[int]]] = {one: {} for one in wishes}
        for topic, size in sorted(world.topics.sizes.items()):
            takers = sorted(one for one, wish in wishes.items() if topic in wish.topics)
            for index in range(size.partitions if takers else 0):
                taker = takers[index % len(takers)]
                if owners.get((topic, index), taker) == taker:
                    before = plan[taker].get(topic, frozenset())
                    plan[taker][topic] = before | {index}
        return {one: assignment_bytes(some) for one, some in plan.items()}

    def _names(self, world: Any) -> dict[str, frozenset[int]]:
        names = {size.topic_id: name for name, size in world.topics.sizes.items()}
        return {names[topic]: some for topic, some in self.reads.items() if topic in names}

    def leave(self, world: Any) -> None:
        world.leave(instances=[(self.name, self.instance)])

    def lost_connection(self) -> None:
        if self.waiting is not None:
            self.waiting, self.phase = None, "join"


def subscription(topics: Iterable[str], owned: dict[str, frozenset[int]] | None = None) -> bytes:
    """As cooperative clients send it: what they want, and what they have."""
    names = [name.encode() for name in topics]
    parts = [struct.pack(">hi", 1, len(names))]
    parts += [struct.pack(">h", len(name)) + name for name in names]
    parts += [struct.pack(">i", -1), assignment_bytes(owned or {})[2:-4]]
    return b"".join(parts)


def check_exclusive(consumers: Iterable[Consumer | ClassicConsumer]) -> None:
    taken = set()
    for consumer in consumers:
        for topic, indexes in consumer.reads.items():
            for index in indexes:
                assert (topic, index) not in taken, "two consumers read one partition"
                taken.add((topic, index))
