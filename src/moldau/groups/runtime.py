"""Shared state of the coordinator, and the order of writes: one uncommitted write per group.

A Write waits until its group has none in flight, is decided on the state at that time, and takes
effect when its records are committed. So no decision depends on state that another write is about
to change. Commits of offsets are independent of each other: waiting ones are written together, so
a slow disk causes larger batches, not a longer queue.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from moldau.groups.config import GroupConfig
from moldau.groups.group import Group
from moldau.groups.records import GroupsRecord, encode
from moldau.groups.results import Effect, Result
from moldau.groups.timers import TimerKey
from moldau.groups.weights import GroupMemory, group_weight
from moldau.groups.write import Write
from moldau.model.coordinator_events import NO_PRODUCER, Persist, Reply
from moldau.model.errors import ErrorCode
from moldau.model.ids import TimestampMs
from moldau.model.timers import Timers


class _Batch(NamedTuple):
    group: Group
    writes: list[Write]
    records: list[GroupsRecord]


class Runtime:
    """Groups, timers, effects and writes, shared by all parts of the coordinator."""

    def __init__(
        self, config: GroupConfig, wall_ms: Callable[[], TimestampMs], memory: GroupMemory
    ) -> None:
        self.config: Final = config
        self.memory: Final = memory
        self.wall_ms: Final = wall_ms
        self.groups: Final[dict[str, Group]] = {}
        self.timers: Final = Timers[TimerKey]()
        self._effects: list[Effect] = []
        self._batches: dict[int, _Batch] = {}
        self._next_token = 1

    def reply(self, request_id: int, result: Result) -> None:
        self._effects.append(Reply(request_id=request_id, result=result))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def group(self, group_id: str) -> Group:
        """The group; created if it does not exist."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = Group(group_id)
        return found

    def forget_if_empty(self, group: Group) -> None:
        if group.has_no_state and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            self.count(group, 0)

    # What clients can make it hold

    def count(self, group: Group, weight: int) -> None:
        """Call it with the weight of the group when that may have changed."""
        self.memory.held_bytes += weight - group.counted_bytes
        group.counted_bytes = weight

    def count_by_name(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            self.count(group, group.weight)

    def may_grow(self, group: Group, growth: int) -> bool:
        """Whether it has room for so many bytes more; none, or fewer, are never too many."""
        weight = group.weight + growth
        others = self.memory.held_bytes - group.counted_bytes
        return growth <= 0 or (
            weight <= self.config.group_bytes_max
            and others + weight <= self.config.groups_bytes_max
        )

    def has_room_for(self, group_id: str) -> bool:
        """Whether the group exists, or may be created."""
        wanted = self.memory.held_bytes + group_weight(group_id)
        return group_id in self.groups or wanted <= self.config.groups_bytes_max

    # Writes

    def submit(self, now: float, group: Group, write: Write) -> None:
        group.waiting.append(write)
        if group.writing is None:
            self._write_next(now, group)

    def persisted(self, now: float, token: int) -> None:
        batch = self._batches.pop(token, None)
        if batch is None:
            # It was abandoned, or its result was reported twice.
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
            # Only now: writes that they submit wait until all of them have taken effect.
            batch.group.writing = None
        self._write_next(now, batch.group)
        self.count_by_name(batch.group.group_id)

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
        self.count_by_name(batch.group.group_id)

    def abandon_writes(self, now: float, error: ErrorCode) -> None:
        """Fail all writes, waiting or in flight; results that arrive later are ignored."""
        batches, self._batches = list(self._batches.values()), {}
        for batch in batches:
            batch.group.writing = None
            writes = [*batch.writes, *batch.group.waiting]
            batch.group.waiting.clear()
            for write in writes:
                write.failed(now, error)

    def tokens(self) -> list[int]:
        """Writes in flight, oldest first."""
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
                    what=f"group {group.group_id!r}",
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
        """Internal error: the client gets UNKNOWN_SERVER_ERROR, and the group stays usable."""
        group.writing = None
        for write in writes:
            write.failed(now, ErrorCode.UNKNOWN_SERVER_ERROR)
