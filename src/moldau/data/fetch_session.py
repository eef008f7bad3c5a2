"""A fetch session (KIP-227): what one client fetches, kept between its requests.

A full fetch names all partitions, and so opens a session; later ones name what changed. A session
does not look at its partitions in turn to see what changed: each of them is *ready* or *idle*. A
ready one has data, an error, or news that the client has not seen, and every fetch reads it. An
idle one has nothing beyond what the last response said. It watches its replica, which makes it
ready again. So a fetch costs what changed, however many partitions the session has.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from moldau.data.fetch import ParkedFetch, PartitionFetch, PartitionFetchResult
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.replica.replica import Replica

_UNKNOWN = -1
_EPOCH_MAX = (1 << 31) - 1

TopicKey = str | bytes
"""The name of a topic, or its id, as the client's version has it."""
NameOf = Callable[[bytes], str | None]
"""The name for the id of a topic; None: unknown to the client."""
FindReplica = Callable[[str, int], Replica | None]


class WantedPartition(NamedTuple):
    """A partition as a request names it."""

    topic: TopicKey
    partition: int
    offset: Offset
    bytes_max: int
    leader_epoch: int


class SessionHome(Protocol):
    """Counts the partitions of all sessions."""

    def resized(self, session: "FetchSession", change: int) -> None: ...


class SessionPartition:
    """One partition of a session, and what its client knows of it."""

    __slots__ = (
        "bytes_max",
        "high_watermark",
        "index",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "name",
        "offset",
        "session",
        "topic",
        "watched",
    )

    def __init__(self, session: "FetchSession", wanted: WantedPartition) -> None:
        self.session = session
        self.topic, self.index, self.offset, self.bytes_max, self.leader_epoch = wanted
        self.name = self.topic if isinstance(self.topic, str) else None
        """None: the id of its topic is unknown."""
        self.watched: Replica | None = None
        """Set while it is idle."""
        self.high_watermark = self.last_stable_offset = self.log_start_offset = _UNKNOWN

    def on_progress(self, replica: Replica) -> None:
        replica.watchers.pop(self, None)
        self._wake(replica)

    def on_unavailable(self, replica: Replica) -> None:
        self._wake(replica)

    def _wake(self, replica: Replica) -> None:
        # Once: while it is ready, commits cost nothing here.
        self.watched = None
        session = self.session
        session.ready[self] = None
        if session.parked is not None:
            session.wake(self, replica)

    def unwatch(self) -> None:
        if self.watched is not None:
            self.watched.watchers.pop(self, None)
            self.watched = None

    def learn(self, result: PartitionFetchResult) -> bool:
        """Whether the response has to list the partition."""
        if result.error is not ErrorCode.NONE:
            # Once it has none any more, the client learns it.
            self.high_watermark = _UNKNOWN
            return True
        is_news = (
            result.size > 0
            or result.high_watermark != self.high_watermark
            or result.last_stable_offset != self.last_stable_offset
            or result.log_start_offset != self.log_start_offset
        )
        self.high_watermark = result.high_watermark
        self.last_stable_offset = result.last_stable_offset
        self.log_start_offset = result.log_start_offset
        return is_news


class FetchSession:
    """The partitions of one session. fetch_sessions.py keeps all sessions, and their bounds."""

    __slots__ = (
        "_find",
        "_home",
        "_reads_committed",
        "_requests",
        "epoch",
        "id",
        "is_closed",
        "owner",
        "parked",
        "partitions",
        "reading",
        "ready",
        "rights",
        "used_at",
        "uses_ids",
    )

    def __init__(
        self, number: int, owner: str, home: SessionHome, find: FindReplica, *, uses_ids: bool
    ) -> None:
        self.id = number
        self.owner = owner
        self._home = home
        self._find = find
        self.uses_ids = uses_ids
        """Topics are named by id."""
        self.epoch = 1
        """That the next request has to name."""
        self.used_at = 0.0
        self.is_closed = False
        self.rights: object = None
        """By which rights all partitions were read; see `judge`."""
        self.parked: ParkedFetch | None = None
        self.partitions: dict[tuple[TopicKey, int], SessionPartition] = {}
        self.ready: dict[SessionPartition, None] = {}
        """In the order in which they are read: what had data goes to the end, so that none starves
        where a response has no room for all."""
        self.reading: list[SessionPartition] = []
        """What the current fetch reads, in the order of its requests."""
        self._requests: list[PartitionFetch] = []
        self._reads_committed = False

    def __len__(self) -> int:
        return len(self.partitions)

    def fill(
        self,
        answered: Iterable[tuple[WantedPartition, PartitionFetchResult, str | None]],
        *,
        reads_committed: bool,
        rights: object,
    ) -> None:
        """With the partitions of a full fetch, as they were answered."""
        self._reads_committed = reads_committed
        self.rights = rights
        for wanted, result, name in answered:
            partition = SessionPartition(self, wanted)
            partition.name = name
            self.partitions[wanted.topic, wanted.partition] = partition
            partition.learn(result)
            self._sort(partition, result)
        self._home.resized(self, len(self.partitions))

    # ---- what the client wants

    def update(
        self, wanted: Iterable[WantedPartition], forgotten: Iterable[tuple[TopicKey, int]]
    ) -> None:
        """Adds, changes and removes partitions."""
        before = len(self.partitions)
        for each in wanted:
            key = (each.topic, each.partition)
            partition = self.partitions.get(key)
            if partition is None:
                partition = self.partitions[key] = SessionPartition(self, each)
            else:
                partition.offset, partition.bytes_max, partition.leader_epoch = each[2:]
                partition.unwatch()
            self.ready[partition] = None
        for key in forgotten:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                partition.unwatch()
                self.ready.pop(partition, None)
        if len(self.partitions) != before:
            self._home.resized(self, len(self.partitions) - before)

    def advance(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1

    def judge(self, rights: object) -> None:
        """A fetch checks the rights for what it reads. When they change, it has to read all."""
        if rights is not self.rights:
            self.rights = rights
            self._wake_all()

    # ---- one fetch

    def begin(
        self, name_of: NameOf, *, reads_committed: bool
    ) -> tuple[list[SessionPartition], list[PartitionFetch]]:
        """What a fetch has to read. Both lists grow while it waits."""
        if reads_committed != self._reads_committed:
            self._reads_committed = reads_committed
            self._wake_all()
        if self.uses_ids:
            for partition in self.ready:
                if isinstance(partition.topic, bytes):
                    # Each time: another topic may have the name now.
                    partition.name = name_of(partition.topic)
        self.reading = list(self.ready)
        self._requests = [self._request(each) for each in self.reading]
        return self.reading, self._requests

    def leave_out(self, refused: set[int]) -> list[SessionPartition]:
        """Takes what is at these positions out of what `begin` returned."""
        left_out = [self.reading[at] for at in sorted(refused)]
        for at in sorted(refused, reverse=True):
            del self.reading[at], self._requests[at]
        return left_out

    def _request(self, each: SessionPartition) -> PartitionFetch:
        return PartitionFetch(
            each.name,
            each.index,
            each.offset,
            each.bytes_max,
            each.leader_epoch,
            self._reads_committed,
        )

    def wake(self, partition: SessionPartition, replica: Replica) -> None:
        """The fetch that waits has to read one more."""
        if self.parked is not None:
            self.reading.append(partition)
            request = self._request(partition)
            self._requests.append(request)
            self.parked.join(replica, request)

    def settle(
        self, found: Iterable[tuple[SessionPartition, PartitionFetchResult]]
    ) -> list[tuple[SessionPartition, PartitionFetchResult]]:
        """What the response has to list."""
        listed = []
        for each in found:
            partition, result = each
            if partition.learn(result):
                listed.append(each)
            if not self.is_closed:
                self._sort(partition, result)
        return listed

    def _sort(self, partition: SessionPartition, result: PartitionFetchResult) -> None:
        if result.error is not ErrorCode.NONE:
            # It may pass without a sign: every fetch looks.
            self.ready[partition] = None
        elif result.size:
            self.ready.pop(partition, None)
            self.ready[partition] = None
        else:
            end = result.last_stable_offset if self._reads_committed else result.high_watermark
            replica = None
            if partition.offset >= end and partition.name is not None:
                replica = self._find(partition.name, partition.index)
            if replica is None:
                # There was no room for its data.
                self.ready[partition] = None
            else:
                self.ready.pop(partition, None)
                partition.watched = replica
                replica.watchers[partition] = None

    def abandon(self) -> None:
        """The client does not wait any more."""
        if self.parked is not None:
            self.parked.cancel()
        self.ended()

    def ended(self) -> None:
        """The fetch is answered. Call it before `settle`."""
        self.parked = None
        self.reading = []
        self._requests = []

    def _wake_all(self) -> None:
        for partition in self.partitions.values():
            partition.unwatch()
            self.ready[partition] = None

    # ---- the end

    def close(self) -> None:
        """Watches nothing any more; a fetch that waits is answered."""
        self.is_closed = True
        parked = self.parked
        if parked is not None:
            parked.complete()
        for partition in self.partitions.values():
            partition.unwatch()
        self.ready.clear()
