"""Owns the disk of a simulated broker: one log and the votes, and what a crash leaves of them."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from moldau.log.disk import DiskLog, open_disk_log
from moldau.log.interface import FlushTask, LogConfig, PartitionLog
from moldau.log.memory import MemoryLog
from moldau.log.votes import VoteJournal
from moldau.model.errors import StorageError
from moldau.model.ids import FIRST_LOG, NO_EPOCH, BrokerId, Epoch, LogId, RaftIndex
from moldau.raft.membership import NO_BROKER
from moldau.testing.logs import flush
from moldau.testing.simdisk import SimCrash, SimDisk
from moldau.testing.simulation.adapter import Item

FIRST: Final = RaftIndex(0)
_GROUP = "g"
_LOG_PATH = "group/0"
_VOTES_PATH = "votes"
_CONFIG = LogConfig(segment_bytes_max=4096, index_interval_bytes=256)
"""Small segments: rolls and cuts across files happen in short runs, too."""


class Shadow:
    """The entries that a log should hold, for checks that must be cheap."""

    def __init__(self, base: RaftIndex = FIRST) -> None:
        self.base = base
        """Where the log starts, if there is nothing in it."""
        self.items: list[Item] = []
        self._starts: list[int] = []

    def add(self, items: Sequence[Item]) -> None:
        self.items.extend(items)
        self._starts.extend(item.entry.start for item in items)

    def cut(self, end: RaftIndex) -> None:
        place = bisect_left(self._starts, end)
        del self.items[place:], self._starts[place:]

    def at(self, start: RaftIndex) -> Item | None:
        place = bisect_left(self._starts, start)
        if place < len(self._starts) and self._starts[place] == start:
            return self.items[place]
        return None

    def between(self, start: RaftIndex, end: RaftIndex) -> list[Item]:
        return self.items[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    @property
    def end(self) -> RaftIndex:
        return self.items[-1].entry.end if self.items else self.base

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else self.base


class Storage(Protocol):
    """What survives a broker's process."""

    @property
    def log(self) -> PartitionLog: ...

    def vote(self) -> tuple[Epoch, BrokerId]: ...

    def record_vote(self, epoch: Epoch, voted_for: BrokerId) -> None:
        """Durable when it returns."""
        ...

    def run_flush(self, task: FlushTask) -> None: ...

    def crash(self, rng: random.Random, *, is_power_cut: bool) -> None:
        """Lose what was not flushed, or with a mere kill nothing, and open again."""
        ...

    def fail_next_flush(self) -> None: ...

    def crash_soon(self, steps: int) -> None:
        """Cut the power in the middle of some change, that many changes ahead."""
        ...

    def replaced(self) -> "Storage":
        """An empty disk, with a log of another id."""
        ...


class MemoryStorage:
    """Fast: a list that forgets its tail."""

    def __init__(self, config: LogConfig | None = None, log_id: LogId = FIRST_LOG) -> None:
        self._config = config
        self.log = MemoryLog(config, log_id)
        self._vote = (NO_EPOCH, NO_BROKER)
        self.keeps_unflushed = True
        """Whether a power cut may leave some of what was not flushed."""
        self._is_failing = False

    def vote(self) -> tuple[Epoch, BrokerId]:
        return self._vote

    def record_vote(self, epoch: Epoch, voted_for: BrokerId) -> None:
        self._vote = (epoch, voted_for)

    def run_flush(self, task: FlushTask) -> None:
        if self._is_failing:
            raise OSError("the disk reports an error")
        task.run()

    def crash(self, rng: random.Random, *, is_power_cut: bool) -> None:
        self._is_failing = False
        if is_power_cut:
            flushed, end = self.log.flushed_index, self.log.end_index
            kept = rng.choice((flushed, rng.randint(flushed, end), end))
            self.log.truncate(RaftIndex(kept) if self.keeps_unflushed else flushed)
        flush(self.log)

    def fail_next_flush(self) -> None:
        self._is_failing = True

    def crash_soon(self, steps: int) -> None:
        """Every change in memory is whole."""

    def replaced(self) -> "MemoryStorage":
        return MemoryStorage(self._config, LogId(self.log.log_id + 1))


class DiskStorage:
    """The product's log and vote journal on the simulated disk."""

    def __init__(self, config: LogConfig | None = None, log_id: LogId = FIRST_LOG) -> None:
        self._config = config or _CONFIG
        self._new_id = log_id
        self.disk = SimDisk()
        self.log: DiskLog
        self._open()

    def vote(self) -> tuple[Epoch, BrokerId]:
        return self._votes.get(_GROUP)

    def record_vote(self, epoch: Epoch, voted_for: BrokerId) -> None:
        self._votes.record({_GROUP: (epoch, voted_for)})

    def run_flush(self, task: FlushTask) -> None:
        task.run()

    def crash(self, rng: random.Random, *, is_power_cut: bool) -> None:
        if is_power_cut:
            self.disk = self.disk.crash(rng)
        try:
            self._open()
        except (StorageError, OSError, SimCrash):
            # A fault that was placed earlier hits the recovery.
            self.disk = self.disk.crash(rng)
            self._open()

    def _open(self) -> None:
        self.log = open_disk_log(self.disk, _LOG_PATH, self._config, self._new_id)
        self._votes = VoteJournal.open(self.disk, _VOTES_PATH)

    def replaced(self) -> "DiskStorage":
        return DiskStorage(self._config, LogId(self.log.log_id + 1))

    def fail_next_flush(self) -> None:
        self.disk.fail_next_flush()

    def crash_soon(self, steps: int) -> None:
        self.disk.crash_at(steps)
