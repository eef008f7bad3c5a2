"""Replicas for tests: one voter, on any log, with a manual clock."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from moldau.log.interface import PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import MoldauError, StorageError
from moldau.model.ids import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.net.peers.secret import PeerSecret
from moldau.raft.config import RaftConfig
from moldau.raft.membership import Members
from moldau.records.batch import BatchHeader, stamp
from moldau.replica.driver import RaftDriver
from moldau.replica.flush_threads import FlushThreads
from moldau.replica.flusher import Flusher
from moldau.replica.raft_group import RaftGroup
from moldau.replica.raft_replica import RaftReplica
from moldau.replica.replica import Replica, ReplicaListener
from moldau.replica.transport import Transport
from moldau.testing.waiting import until

ME = BrokerId(1)
NO_VOTE = BrokerId(-1)


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self, wall_ms: int = 0, monotonic: float = 0.0) -> None:
        self.wall = TimestampMs(wall_ms)
        self.steady = monotonic

    def wall_ms(self) -> TimestampMs:
        return self.wall

    def monotonic(self) -> float:
        return self.steady


class MemoryVotes:
    """Votes in memory; recording fails once `failure` is set."""

    def __init__(self) -> None:
        self._votes: dict[str, tuple[Epoch, BrokerId]] = {}
        self.failure: StorageError | None = None

    def get(self, group: str) -> tuple[Epoch, BrokerId]:
        return self._votes.get(group, (NO_EPOCH, NO_VOTE))

    def record(self, votes: Mapping[str, tuple[Epoch, BrokerId]]) -> None:
        if self.failure is not None:
            raise self.failure
        self._votes.update(votes)

    def forget(self, groups: frozenset[str]) -> None:
        for group in groups:
            self._votes.pop(group, None)

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(self._votes)


class RecordingListener:
    """Records the events of replicas."""

    def __init__(self) -> None:
        self.leaders: list[tuple[BrokerId, bool]] = []
        """The known leader, and whether this replica was ready to lead."""
        self.failures: list[MoldauError] = []

    def on_leadership(self, replica: Replica) -> None:
        self.leaders.append((replica.leader, replica.is_ready))

    def on_voter_replaced(self, replica: Replica) -> None:
        pass

    def on_failed(self, replica: Replica, error: MoldauError) -> None:
        self.failures.append(error)


def make_flusher(
    clock: ManualClock | None = None,
    on_failure: Callable[[StorageError], None] = lambda _: None,
    threads: int = 1,
) -> Flusher:
    """A flusher on the running loop; the test stops it. Pure tests use `threads=0`."""
    return Flusher(
        loop=asyncio.get_running_loop(),
        clock=clock or ManualClock(),
        workers=FlushThreads(threads) if threads else None,
        on_failure=on_failure,
    )


def propose_batches(
    driver: RaftDriver,
    group: RaftGroup,
    data: bytearray | memoryview,
    headers: Sequence[BatchHeader],
) -> tuple[Offset, Offset]:
    """Append batches as a group's owner does; returns the first and the next offset.

    `data` is stamped in place. Raises RefusedError, DiskFullError, StorageError.
    """
    driver.check_leadership(group)
    epoch = group.core.epoch
    base = offset = group.log.end_offset
    position = 0
    stamped = []
    for header in headers:
        stamp(data, position, offset, epoch)
        header = header.replaced(base_offset=offset, leader_epoch=epoch)
        stamped.append(header)
        position += header.size
        offset = header.next_offset
    with driver._flusher.fencing():
        group.log.append(data, stamped)
    driver.appended(group, position)
    return base, offset


def make_driver(
    flusher: Flusher,
    *,
    clock: Clock | None = None,
    votes: MemoryVotes | None = None,
    me: BrokerId = ME,
    config: RaftConfig | None = None,
) -> RaftDriver:
    """A driver without peers: its transport is never bound. The test stops it."""
    loop = asyncio.get_running_loop()
    rng = random.Random(me)
    used = clock or ManualClock()
    transport = Transport(
        loop=loop,
        clock=used,
        rng=rng,
        cluster_id="test",
        me=me,
        incarnation="test",
        secret=PeerSecret(b"test", rng.randbytes),
        authorize=lambda hello: "all peers are rejected",
    )
    return RaftDriver(
        loop=loop,
        clock=used,
        rng=rng,
        flusher=flusher,
        votes=votes or MemoryVotes(),
        transport=transport,
        config=config,
    )


def open_replica(
    log: PartitionLog,
    flusher: Flusher,
    driver: RaftDriver,
    *,
    partition: int = 0,
    topic: str = "t",
    topic_id: TopicId | None = None,
    clock: Clock | None = None,
    members: Members | None = None,
    listener: ReplicaListener | None = None,
) -> Replica:
    """A replica as a broker opens it; the only voter, unless `members` is given."""
    return Replica(
        partition=TopicPartition(topic, PartitionIndex(partition)),
        topic_id=topic_id or TopicId(bytes(16)),
        log=log,
        members=members or Members((driver.me,)),
        driver=driver,
        flusher=flusher,
        clock=clock or ManualClock(),
        listener=listener or RecordingListener(),
    )


async def wait_ready(*replicas: RaftReplica) -> None:
    await until(lambda: all(replica.is_ready for replica in replicas), "all replicas lead")


async def lead_replica(
    log: PartitionLog,
    flusher: Flusher,
    *,
    partition: int = 0,
    topic: str = "t",
    clock: Clock | None = None,
    driver: RaftDriver | None = None,
    listener: ReplicaListener | None = None,
) -> Replica:
    """A replica that was elected and is ready."""
    replica = open_replica(
        log,
        flusher,
        driver or make_driver(flusher, clock=clock),
        partition=partition,
        topic=topic,
        clock=clock,
        listener=listener,
    )
    await wait_ready(replica)
    return replica
