"""Owns a change in the making: what a decision wants, over a state that stays as it is."""

from typing import Final

from moldau.groups.queue.config import QueueConfig
from moldau.groups.queue.records import SLOTS
from moldau.groups.queue.state import Dead, Open, QueueId, QueueRecord, QueueState
from moldau.model.ids import Epoch, Offset

SNAPSHOT_EVERY: Final = SLOTS
"""Each record whose number is a multiple of it holds the whole state."""


class Draft:
    """Read through it and a decision sees what it has decided so far: a token named twice in one
    command is good once."""

    __slots__ = ("_opened", "_settled", "config", "next", "queue", "state")

    def __init__(self, state: QueueState, config: QueueConfig, queue: QueueId) -> None:
        self.state = state
        self.config = config
        self.queue = queue
        self.next = state.next
        self._opened: dict[Offset, Open] = {}
        self._settled: set[Offset] = set()

    @property
    def died(self) -> tuple[Offset, ...]:
        return tuple(
            sorted(offset for offset, entry in self._opened.items() if isinstance(entry, Dead))
        )

    def get(self, offset: Offset) -> Open | None:
        if offset in self._settled:
            return None
        entry = self._opened.get(offset)
        return self.state.get(offset) if entry is None else entry

    def settle(self, offset: Offset) -> None:
        self._opened.pop(offset, None)
        self._settled.add(offset)

    def put(self, offset: Offset, entry: Open) -> None:
        self._opened[offset] = entry

    def record(self) -> QueueRecord | None:
        """None if nothing changes."""
        if not self._opened and not self._settled and self.next == self.state.next:
            return None
        sequence = self.state.sequence + 1
        # By the number alone: whoever loads the queue knows when, whatever it was loaded from.
        if sequence % SNAPSHOT_EVERY == 0:
            return self.snapshot(self.state.epoch)
        return QueueRecord(
            queue=self.queue,
            sequence=sequence,
            epoch=self.state.epoch,
            next=self.next,
            settled=tuple(sorted(self._settled)),
            opened=tuple(sorted(self._opened.items(), key=_offset_of)),
        )

    def snapshot(self, epoch: Epoch) -> QueueRecord:
        """All that will be, as the first record of an epoch or as one of those in between."""
        after = {**self.state.open, **self._opened}
        for offset in self._settled:
            after.pop(offset, None)
        return QueueRecord(
            queue=self.queue,
            sequence=self.state.sequence + 1,
            epoch=epoch,
            next=self.next,
            opened=tuple(sorted(after.items(), key=_offset_of)),
            is_snapshot=True,
        )


def _offset_of(item: tuple[Offset, Open]) -> Offset:
    return item[0]
