"""Owns replicas for tests: one voter, on any log, with a clock that the test sets."""

import asyncio
from collections.abc import Callable, Mapping

from moldau.log.interface import PartitionLog
from moldau.model.errors import StorageError
from moldau.model.ids import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    PartitionIndex,
    RaftIndex,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from moldau.raft.group import RaftGroup
from moldau.replica.election import elect
from moldau.replica.flusher import Flusher
from moldau.replica.replica import Replica

ME = BrokerId(1)
NO_VOTE = BrokerId(-1)


class SetClock:
    """Stands still until the test moves it."""

    def __init__(self, wall_ms: int = 0, monotonic: float = 0.0) -> None:
        self.wall = TimestampMs(wall_ms)
        self.steady = monotonic

    def wall_ms(self) -> TimestampMs:
        return self.wall

    def monotonic(self) -> float:
        return self.steady


class MemoryVotes:
    """Votes that last as long as the object; recording fails once `failure` is set."""

    def __init__(self) -> None:
        self._votes: dict[str, tuple[Epoch, BrokerId]] = {}
        self.failure: StorageError | None = None

    def get(self, group: str) -> tuple[Epoch, BrokerId]:
        return self._votes.get(group, (NO_EPOCH, NO_VOTE))

    def record(self, votes: Mapping[str, tuple[Epoch, BrokerId]]) -> None:
        if self.failure is not None:
            raise self.failure
        self._votes.update(votes)


def make_flusher(
    clock: SetClock | None = None,
    on_failure: Callable[[StorageError], None] = lambda _: None,
    threads: int = 1,
) -> Flusher:
    """On the running loop; the test stops it."""
    return Flusher(
        loop=asyncio.get_running_loop(),
        clock=clock or SetClock(),
        threads=threads,
        on_failure=on_failure,
    )


def lead_replica(
    log: PartitionLog,
    flusher: Flusher,
    *,
    partition: int = 0,
    topic: str = "t",
    clock: SetClock | None = None,
    votes: MemoryVotes | None = None,
) -> Replica:
    """A replica that has been elected, as a broker's start leaves it."""
    replica = Replica(
        partition=TopicPartition(topic, PartitionIndex(partition)),
        topic_id=TopicId(bytes(16)),
        log=log,
        group=RaftGroup(broker=ME, voters=frozenset({ME}), epoch=NO_EPOCH, commit=RaftIndex(0)),
        flusher=flusher,
        clock=clock or SetClock(),
    )
    elect([replica], votes or MemoryVotes())
    return replica
