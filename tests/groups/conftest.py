"""A coordinator with a log, a clock and a notebook of replies, driven by hand."""

import struct
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from moldau.groups.config import GroupConfig
from moldau.groups.consumer.subscriptions import TopicSize
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.events import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroups,
    DeleteOffsets,
    Event,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    OffsetToCommit,
    Sync,
    TopicsDeleted,
)
from moldau.model.coordinator_events import Persist, Persisted, PersistFailed, Reply, Tick
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition

WALL_START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    parts = [struct.pack(">hi", 1, len(topics))]
    for topic in topics:
        parts.append(struct.pack(">h", len(topic)) + topic.encode())
    return b"".join(parts) + struct.pack(">i", -1)


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


class Topics:
    """The topics of the cluster: the test makes, grows and deletes them."""

    def __init__(self) -> None:
        self.version = 0
        self.sizes: dict[str, TopicSize] = {}
        self._ids = count(1)

    def create(self, name, partitions):
        self.version += 1
        topic_id = TopicId(next(self._ids).to_bytes(16, "big"))
        if name in self.sizes:
            topic_id = self.sizes[name].topic_id
        self.sizes[name] = TopicSize(topic_id, partitions)
        return topic_id

    def delete(self, name):
        self.version += 1
        self.sizes.pop(name, None)

    def topic(self, name):
        return self.sizes.get(name)

    def names(self):
        return tuple(self.sizes)


class World:
    """Persists complete at once, unless `hold_writes`; then `complete` and `fail` decide."""

    subscription = staticmethod(subscription)
    tp = staticmethod(tp)

    def __init__(self, log=None, now=0.0, ids=None, topics=None, memory=None, **config) -> None:
        self.topics = topics or Topics()
        self.now = now
        self.log = [] if log is None else log
        self.ids = count(1) if ids is None else ids
        self.config = GroupConfig(**{"initial_rebalance_delay_ms": 0, **config})
        self.coordinator = GroupCoordinator(
            self.config,
            lambda client: f"{client}-{next(self.ids)}",
            self.wall_ms,
            self.topics,
            memory=memory,
        )
        self.requests = count(1)
        self.replies: dict[int, Any] = {}
        self.held: list[Any] = []
        self.hold_writes = False
        self.load()

    def load(self) -> None:
        for key, value in self.log:
            self.coordinator.replay(key, value)
        self.take(self.coordinator.finish_loading(self.now))

    def restarted(self, **changes) -> "World":
        """A new coordinator that has read the log."""
        return World(log=list(self.log), now=self.now, ids=self.ids, topics=self.topics, **changes)

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(WALL_START_MS + int(self.now * 1000))

    def handle(self, event: Event) -> None:
        self.take(self.coordinator.handle(self.now, event))
        self.coordinator.check_invariants()

    def take(self, effects) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request_id not in self.replies, "answered twice"
                    self.replies[effect.request_id] = effect.result
                case Persist():
                    self.held.append(effect)
        while self.held and not self.hold_writes:
            self.complete()

    def complete(self) -> None:
        """The oldest write is committed."""
        persist = self.held.pop(0)
        self.log.extend(persist.records)
        self.handle(Persisted(token=persist.token))

    def fail(self, error=ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        self.handle(PersistFailed(token=self.held.pop(0).token, error=error))

    def release(self) -> None:
        self.hold_writes = False
        self.take([])

    def advance(self, seconds: float) -> None:
        """Time passes; every deadline on the way is met."""
        until = self.now + seconds
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= until:
            self.now = max(deadline, self.now)
            self.handle(Tick())
        self.now = until

    def send(self, kind, **fields) -> int:
        request_id = next(self.requests)
        self.handle(kind(request_id=request_id, **fields))
        return request_id

    def reply(self, request_id: int):
        return self.replies.get(request_id)

    # Requests, with their usual values

    def send_join(self, member_id="", *, group="g", topics=("t",), **fields) -> int:
        values = {
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": (("range", subscription(*topics)),),
        }
        return self.send(Join, group_id=group, member_id=member_id, **{**values, **fields})

    def join(self, member_id="", **fields):
        return self.reply(self.send_join(member_id, **fields))

    def send_sync(self, member_id, generation, assignments=None, *, group="g", **fields) -> int:
        return self.send(
            Sync,
            group_id=group,
            member_id=member_id,
            generation=generation,
            assignments=tuple((assignments or {}).items()),
            **fields,
        )

    def sync(self, member_id, generation, assignments=None, **fields):
        return self.reply(self.send_sync(member_id, generation, assignments, **fields))

    def heartbeat(self, member_id, generation, *, group="g", **fields) -> ErrorCode:
        event = {"group_id": group, "member_id": member_id, "generation": generation}
        error: ErrorCode = self.reply(self.send(Heartbeat, **event, **fields)).error
        return error

    def leave(self, *member_ids, group="g", instances=()):
        members = tuple(LeavingMember(member_id=one) for one in member_ids) + tuple(
            LeavingMember(member_id=member_id, instance_id=instance)
            for member_id, instance in instances
        )
        return self.reply(self.send(Leave, group_id=group, members=members))

    def send_beat(self, member_id, epoch, owned=..., *, group="g", **fields) -> int:
        """Owned: {topic id: indexes}. A join says what a join must say."""
        values: dict[str, Any] = {"client_id": "c", "client_host": "/127.0.0.1"}
        if epoch == 0:
            values |= {"topics": ("t",), "rebalance_timeout_ms": 30_000}
        if owned is ...:
            owned = {} if epoch == 0 else None
        if owned is not None:
            owned = {one: frozenset(some) for one, some in owned.items()}
        values["owned"] = owned
        event = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
        return self.send(ConsumerHeartbeat, **{**event, **values, **fields})

    def beat(self, member_id, epoch, owned=..., **fields):
        return self.reply(self.send_beat(member_id, epoch, owned, **fields))

    def consumers(self, group="g"):
        """State, epoch, and for each member its epoch with what it has."""
        found = self.coordinator.describe_consumers(group)
        return (
            found.state.value,
            found.epoch,
            {one.member_id: (one.epoch, one.assigned) for one in found.members},
        )

    def send_commit(self, offsets, member_id="", generation=-1, *, group="g", **fields) -> int:
        return self.send(
            CommitOffsets,
            group_id=group,
            member_id=member_id,
            generation=generation,
            offsets=tuple(
                OffsetToCommit(partition=partition, offset=Offset(offset))
                if isinstance(offset, int)
                else offset
                for partition, offset in offsets.items()
            ),
            **fields,
        )

    def commit(self, offsets, member_id="", generation=-1, **fields) -> ErrorCode | None:
        """The error that all partitions have, or None if there is no answer yet."""
        result = self.reply(self.send_commit(offsets, member_id, generation, **fields))
        if result is None:
            return None
        error: ErrorCode
        (error,) = {error for _, error in result.errors}
        return error

    def committed(self, group="g") -> dict[TopicPartition, int]:
        found = self.coordinator.fetch_offsets(group)
        assert found.error is ErrorCode.NONE
        return {partition: one.offset for partition, one in found.offsets.items()}

    def delete_groups(self, *group_ids):
        result = self.reply(self.send(DeleteGroups, group_ids=group_ids))
        return None if result is None else dict(result.errors)

    def delete_offsets(self, *partitions, group="g"):
        return self.reply(self.send(DeleteOffsets, group_id=group, partitions=partitions))

    def delete_topics(self, *topics) -> None:
        self.handle(TopicsDeleted(topics=frozenset(topics)))

    def state(self, group="g") -> str:
        return self.coordinator.describe(group).state.value

    # Shortcuts to a state

    def stable(self, members: int = 1, **fields) -> list[str]:
        """A stable group of so many members; their ids, the leader first."""
        group = fields.get("group", "g")
        first = self.join(**fields)
        ids = [first.member_id]
        self.sync(ids[0], first.generation, {ids[0]: b"alone"}, group=group)
        while len(ids) < members:
            waiting = self.send_join(**fields)
            joined = [self.send_join(one, **fields) for one in ids]
            ids.append(self.reply(waiting).member_id)
            generation = self.reply(waiting).generation
            assignments = {one: f"part {n}".encode() for n, one in enumerate(ids)}
            assert self.reply(joined[0]).leader == ids[0]
            for one in ids[1:]:
                self.send_sync(one, generation, group=group)
            self.sync(ids[0], generation, assignments, group=group)
        assert self.state(group) == "Stable"
        return ids


@pytest.fixture(scope="session")
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture
def world() -> World:
    return World()
