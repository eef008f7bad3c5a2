"""Owns a client of fetch sessions over a fetch world: as Kafka's, it names what changed."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from fetch_world import World

from moldau.api.guard import OPEN_LISTENER, Guard
from moldau.api.guarded.records import GuardedFetch
from moldau.data.fetch import ParkedFetch, PartitionFetch, PartitionFetchResult
from moldau.data.fetch_session import SessionPartition, WantedPartition
from moldau.data.fetch_sessions import FetchSessions
from moldau.model.ids import Offset
from moldau.replica.replica import Replica
from moldau.security.principal import ANONYMOUS

NO_EPOCH = -1


def sessions_of(world: World, **bounds: int) -> FetchSessions:
    def find(topic: str, index: int) -> Replica | None:
        hosted = world.get(topic, index)
        return None if hosted is None else cast(Replica, hosted.replica)

    return FetchSessions(find, lambda: 0.0, **bounds)


class SessionClient:
    """`wanted` are the offsets that it fetches from, by partition; a test changes them as it likes.

    A connection of its own, and one session.
    """

    def __init__(
        self,
        world: World,
        sessions: FetchSessions | None = None,
        *,
        owner: str = "me",
        reads_committed: bool = False,
        partition_bytes_max: int = 1 << 20,
    ) -> None:
        self.world = world
        self.sessions = sessions or sessions_of(world)
        self.owner = owner
        self.reads_committed = reads_committed
        self.partition_bytes_max = partition_bytes_max
        self.wanted: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self.id = 0
        self.epoch = 0
        self.answers: list[dict[int, PartitionFetchResult]] = []
        guard = Guard(ANONYMOUS, "host", OPEN_LISTENER, None, None)
        broker = SimpleNamespace(fetch=world.service)
        self.fetches = GuardedFetch(guard, cast(Any, broker))

    def _named(self, indexes: Iterable[int]) -> list[WantedPartition]:
        size = self.partition_bytes_max
        return [
            WantedPartition("t", index, Offset(self.wanted[index]), size, NO_EPOCH)
            for index in indexes
        ]

    def requests(self, indexes: Iterable[int]) -> list[PartitionFetch]:
        """As a full fetch names them."""
        return [
            PartitionFetch(
                "t",
                index,
                Offset(self.wanted[index]),
                self.partition_bytes_max,
                NO_EPOCH,
                self.reads_committed,
            )
            for index in indexes
        ]

    def open(self) -> int:
        """A full fetch that does not wait; the id of the session."""
        named = self._named(self.wanted)
        results, _, _ = self.world.service.read(self.requests(self.wanted), 1 << 20)
        self.id = self.sessions.open(
            self,
            self.owner,
            [(each, result, "t") for each, result in zip(named, results, strict=True)],
            len(named),
            uses_ids=False,
            reads_committed=self.reads_committed,
            rights=None,
        )
        self.epoch = 1
        self._told = dict(self.wanted)
        self.answers.append(dict(zip(self.wanted, results, strict=True)))
        return self.id

    def go_on(
        self, *, bytes_max: int = 1 << 24, bytes_min: int = 1, wait_ms_max: int = 0
    ) -> ParkedFetch | None:
        """The next fetch of the session. Raises RefusedError."""
        session = self.sessions.resume(self, self.id, self.epoch, uses_ids=False)
        changed = [at for at in self.wanted if self._told.get(at) != self.wanted[at]]
        gone = self._told.keys() - self.wanted.keys()
        session.update(self._named(changed), [("t", index) for index in gone])
        self.sessions.make_room(self, session)
        self.epoch += 1
        self._told = dict(self.wanted)
        return self.fetches.fetch_in_session(
            session,
            name_of=lambda _: None,
            reads_committed=self.reads_committed,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            wait_ms_max=wait_ms_max,
            on_ready=self._answered,
        )

    def _answered(self, found: list[tuple[SessionPartition, PartitionFetchResult]]) -> None:
        self.answers.append({partition.index: result for partition, result in found})

    def consume(self) -> None:
        """Goes on behind what the last answer has."""
        for index, result in self.answers[-1].items():
            if index in self.wanted:
                self.wanted[index] += result.record_count
