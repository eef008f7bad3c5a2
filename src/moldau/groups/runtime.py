"""Owns the order of writes: at most one uncommitted write per group.

A Write waits until the group has none under way, is decided then, on the group's state of that
moment, and takes effect when its records are committed. So no decision rests on a state that
another write is about to change. Commits of offsets do not depend on each other: those that wait
are written together, and a slow disk makes larger batches rather than a longer queue.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from moldau.groups.config import GroupConfig
from moldau.groups.group import Group
from moldau.groups.records import GroupsRecord, encode
from moldau.groups.results import NO_PRODUCER, Effect, Persist, Reply, Result
from moldau.groups.timers import Timers
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId, TimestampMs

TOO_LARGE: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }
)
"""Errors of an append that no retry mends."""


class Write(ABC):
    """A change of durable state."""

    __slots__ = ()
    merges: str = ""
    """Writes of one such kind that follow each other go out together."""
    producer: tuple[ProducerId, ProducerEpoch] = NO_PRODUCER
    """Whose transaction the records belong to; one that names a producer is never merged."""

    @abstractmethod
    def decide(self, now: float) -> list[GroupsRecord]:
        """The records, or none: then the write is done and has answered by itself."""

    @abstractmethod
    def committed(self, now: float) -> None:
        """The records are committed and applied."""

    @abstractmethod
    def failed(self, now: float, error: ErrorCode) -> None:
        """The records never will be committed. `error` is that of the append."""


class _Batch:
    """Writes of one group that went out together."""

    __slots__ = ("group", "records", "writes")

    def __init__(self, group: Group, writes: list[Write], records: list[GroupsRecord]) -> None:
        self.group = group
        self.writes = writes
        self.records = records


class Runtime:
    """What all parts of the coordinator share: groups, timers, the way out, and the writes."""

    def __init__(self, config: GroupConfig, wall_ms: Callable[[], TimestampMs]) -> None:
        self.config: Final = config
        self.wall_ms: Final = wall_ms
        self.groups: Final[dict[str, Group]] = {}
        self.timers: Final = Timers()
        self._effects: list[Effect] = []
        self._batches: dict[int, _Batch] = {}
        self._next_token = 1

    def reply(self, request_id: int, result: Result) -> None:
        self._effects.append(Reply(request_id=request_id, result=result))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def group(self, group_id: str) -> Group:
        """The group, made if there is none."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = Group(group_id)
        return found

    def forget_if_empty(self, group: Group) -> None:
        if group.forgettable and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def submit(self, now: float, group: Group, write: Write) -> None:
        group.waiting.append(write)
        if group.writing is None:
            self._write_next(now, group)

    def persisted(self, now: float, token: int) -> None:
        batch = self._batches.pop(token, None)
        if batch is None:
            # It was abandoned, or the shell told its outcome twice.
            return
        try:
            producer = batch.writes[0].producer
            for record in batch.records:
                if producer == NO_PRODUCER:
                    batch.group.apply(record)
                else:
                    batch.group.apply_pending(producer[0], record)
            for write in batch.writes:
                write.committed(now)
        finally:
            # Only now: what they submit waits until all of them have taken effect.
            batch.group.writing = None
        self._write_next(now, batch.group)

    def persist_failed(self, now: float, token: int, error: ErrorCode) -> None:
        batch = self._batches.pop(token, None)
        if batch is None:
            return
        try:
            for write in batch.writes:
                write.failed(now, error)
        finally:
            batch.group.writing = None
        self._write_next(now, batch.group)

    def abandon_writes(self, now: float, error: ErrorCode) -> None:
        """Answers all that waits for the log; outcomes that arrive later are ignored."""
        batches, self._batches = list(self._batches.values()), {}
        for batch in batches:
            batch.group.writing = None
            writes = [*batch.writes, *batch.group.waiting]
            batch.group.waiting.clear()
            for write in writes:
                write.failed(now, error)

    def tokens(self) -> list[int]:
        """Writes under way, oldest first."""
        return list(self._batches)

    def _write_next(self, now: float, group: Group) -> None:
        # decide() may submit more; `writing` keeps that from starting a second round.
        while group.waiting and group.writing is None:
            token = group.writing = self._next_token
            self._next_token += 1
            writes, records, encoded = self._next_batch(now, group)
            if not records:
                group.writing = None
                continue
            self._batches[token] = _Batch(group, writes, records)
            self._effects.append(
                Persist(
                    token=token,
                    group_id=group.group_id,
                    records=tuple(encoded),
                    producer=writes[0].producer,
                )
            )
        self.forget_if_empty(group)

    def _next_batch(
        self, now: float, group: Group
    ) -> tuple[list[Write], list[GroupsRecord], list[tuple[bytes, bytes | None]]]:
        writes: list[Write] = []
        records: list[GroupsRecord] = []
        encoded: list[tuple[bytes, bytes | None]] = []
        size = 0
        while group.waiting:
            write = group.waiting[0]
            if writes and not (write.merges and write.merges == writes[-1].merges):
                break
            if size >= self.config.persist_bytes_max:
                break
            group.waiting.popleft()
            is_decided = False
            try:
                decided = write.decide(now)
                pairs = [encode(record) for record in decided]
                is_decided = True
            finally:
                if not is_decided:
                    self._give_up(now, group, [*writes, write])
            if not decided:
                continue
            writes.append(write)
            records += decided
            encoded += pairs
            size += sum(len(key) + len(value or b"") for key, value in pairs)
        return writes, records, encoded

    def _give_up(self, now: float, group: Group, writes: list[Write]) -> None:
        """A defect: whoever handed in the event hears of it, and the group stays usable."""
        group.writing = None
        for write in writes:
            write.failed(now, ErrorCode.UNKNOWN_SERVER_ERROR)


def client_error(error: ErrorCode) -> ErrorCode:
    """An error of the append, as a client of the coordinator understands it."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR if error in TOO_LARGE else error
