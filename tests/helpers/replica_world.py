"""Owns a broker alone with the replica that it leads, on a log whose flushes a test holds."""

import asyncio
import threading

from memory_log import MemoryLog

from moldau.log.interface import FlushTask, LogConfig
from moldau.model.errors import ErrorCode, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import FIRST_LOG, LogId
from moldau.replica.replica import Replica
from moldau.testing.replicas import (
    ManualClock,
    MemoryVotes,
    RecordingListener,
    lead_replica,
    make_driver,
    make_flusher,
)
from moldau.testing.waiting import wait_seconds_max


class HeldLog(MemoryLog):
    """A log whose flushes finish when the test says so, or fail."""

    def __init__(self, config: LogConfig, log_id: LogId = FIRST_LOG) -> None:
        super().__init__(config, log_id)
        self.runs = 0
        self.failure: OSError | None = None
        self.gate: threading.Event | None = None
        """A flush waits for it; then it runs in a thread, as a slow disk's does."""

    def begin_flush(self) -> FlushTask | None:
        task = super().begin_flush()
        return None if task is None else HeldTask(self, task)

    def end_flush(self, task: FlushTask) -> None:
        assert isinstance(task, HeldTask)
        super().end_flush(task.inner)


class HeldTask:
    @property
    def is_heavy(self) -> bool:
        return self.log.gate is not None

    @property
    def descriptor(self) -> int | None:
        return None

    def failed(self, error: OSError) -> None:
        self.inner.failed(error)

    def __init__(self, log: HeldLog, inner: FlushTask) -> None:
        self.log = log
        self.inner = inner

    def run(self) -> None:
        self.log.runs += 1
        if self.log.gate is not None:
            assert self.log.gate.wait(wait_seconds_max())
        if self.log.failure is not None:
            raise self.log.failure
        self.inner.run()


class World:
    """A broker alone, and the replica that it leads."""

    replica: Replica

    def __init__(self, flush: FlushPolicy) -> None:
        self.failures: list[StorageError] = []
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.flusher = make_flusher(self.clock, self.failures.append, threads=2)
        self.log = HeldLog(LogConfig(flush=flush))
        self.votes = MemoryVotes()
        self.listener = RecordingListener()
        self.driver = make_driver(self.flusher, clock=self.clock, votes=self.votes)

    @classmethod
    async def make(cls, flush: FlushPolicy = FlushPolicy.ALWAYS) -> "World":
        world = cls(flush)
        world.replica = await world.open()
        return world

    async def open(self) -> Replica:
        replica = await lead_replica(
            self.log, self.flusher, clock=self.clock, driver=self.driver, listener=self.listener
        )
        self.log.runs = 0
        return replica

    async def restart(self) -> Replica:
        """The log as it is, all that is derived from it anew."""
        self.replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.replica = await self.open()
        return self.replica

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.002)
