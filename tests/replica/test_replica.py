"""A replica commits what is flushed, in order, and tells whoever waits. On the in-memory log."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from moldau.log.interface import FlushTask, LogConfig
from moldau.log.memory import MemoryLog
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    Offset,
    TimestampMs,
)
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.replica import Proposal, Replica
from moldau.testing.replicas import (
    MemoryVotes,
    NotingListener,
    SetClock,
    lead_replica,
    make_driver,
    make_flusher,
)


class HeldLog(MemoryLog):
    """A log whose flushes finish when the test says so, or fail."""

    def __init__(self, config: LogConfig) -> None:
        super().__init__(config)
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

    def __init__(self, log: HeldLog, inner: FlushTask) -> None:
        self.log = log
        self.inner = inner

    def run(self) -> None:
        self.log.runs += 1
        if self.log.gate is not None:
            assert self.log.gate.wait(10)
        if self.log.failure is not None:
            raise self.log.failure
        self.inner.run()


class World:
    """A broker alone, and the replica that it leads."""

    replica: Replica

    def __init__(self, flush: FlushPolicy) -> None:
        self.failures: list[StorageError] = []
        self.clock = SetClock(wall_ms=1_700_000_000_000)
        self.flusher = make_flusher(self.clock, self.failures.append, threads=2)
        self.log = HeldLog(LogConfig(flush=flush))
        self.votes = MemoryVotes()
        self.listener = NotingListener()
        self.driver = make_driver(self.flusher, clock=self.clock, votes=self.votes)

    @classmethod
    async def make(cls, flush: FlushPolicy = FlushPolicy.ALWAYS) -> "World":
        world = cls(flush)
        world.replica = await world.open()
        return world

    async def open(self) -> Replica:
        return await lead_replica(
            self.log, self.flusher, clock=self.clock, driver=self.driver, listener=self.listener
        )

    async def restart(self) -> Replica:
        """The log as it is, all that is derived from it anew."""
        self.replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.replica = await self.open()
        return self.replica

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()


def batch(*values: bytes, producer: int = -1, sequence: int = -1) -> bytearray:
    records = [Record(Offset(0), TimestampMs(5), None, value, []) for value in values]
    epoch = 0 if producer >= 0 else -1
    return bytearray(
        build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    )


def propose(replica: Replica, data: bytearray, *, append_time: bool = False) -> Proposal:
    headers = []
    position = 0
    while position < len(data):
        headers.append(read_header(data, position))
        position += headers[-1].size
    return replica.propose(data, headers, append_time=append_time)


def values(replica: Replica) -> list[bytes | None]:
    found = []
    for stored in replica.log.batches(Offset(0)):
        found += [record.value for record in read_records(stored)]
    return found


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    pytest.fail("the condition did not come true")


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.002)


async def test_the_first_record_of_a_new_partition_gets_offset_zero_in_epoch_zero() -> None:
    world = await World.make()
    proposal = propose(world.replica, batch(b"a", b"b"))
    assert (proposal.base_offset, proposal.end_offset) == (0, 2)
    assert world.replica.epoch == 0
    assert next(iter(world.log.headers(Offset(0)))).leader_epoch == 0
    world.stop()


async def test_offsets_are_dense_across_elections() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, batch(b"a"))
    again = await world.restart()
    assert again.epoch == 1
    assert propose(again, batch(b"b")).base_offset == 1
    await until(lambda: again.high_watermark == 2)
    world.stop()


async def test_nothing_is_committed_before_its_flush() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    assert (world.replica.high_watermark, told, world.log.runs) == (0, [], 0)
    await turns()
    assert (world.replica.high_watermark, told) == (1, [ErrorCode.NONE])
    assert world.log.runs == 1
    world.stop()


async def test_what_is_appended_in_one_turn_shares_one_flush() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    for number in range(50):
        proposal = propose(world.replica, batch(b"%d" % number))
        world.replica.when_committed(proposal.end_offset, told.append)
    await turns()
    assert len(told) == 50
    assert world.log.runs == 1
    world.stop()


async def test_what_is_appended_during_a_flush_is_committed_by_the_next_one() -> None:
    world = await World.make()
    gate = world.log.gate = threading.Event()
    told: list[str] = []
    first = propose(world.replica, batch(b"a"))
    world.replica.when_committed(first.end_offset, lambda _: told.append("first"))
    await until(lambda: world.log.runs == 1)
    second = propose(world.replica, batch(b"b"))
    world.replica.when_committed(second.end_offset, lambda _: told.append("second"))
    later = world.log.gate = threading.Event()
    gate.set()
    await until(lambda: world.log.runs == 2)
    assert (told, world.replica.high_watermark) == (["first"], 1)
    later.set()
    await turns()
    assert (told, world.replica.high_watermark) == (["first", "second"], 2)
    world.stop()


@pytest.mark.parametrize("policy", [FlushPolicy.NEVER, FlushPolicy.INTERVAL])
async def test_with_a_laxer_policy_appended_counts_as_committed(policy: FlushPolicy) -> None:
    world = await World.make(policy)
    world.log.failure = OSError(5, "Input/output error")
    propose(world.replica, batch(b"a"))
    await until(lambda: world.replica.high_watermark == 1)
    assert (world.log.runs, world.failures) == (0, [])
    world.stop()


async def test_waiters_are_called_in_the_order_of_offsets() -> None:
    world = await World.make()
    called: list[str] = []
    first = propose(world.replica, batch(b"a"))
    second = propose(world.replica, batch(b"b"))
    world.replica.when_committed(second.end_offset, lambda _: called.append("second"))
    world.replica.when_committed(first.end_offset, lambda _: called.append("first"))
    await turns()
    assert called == ["first", "second"]
    world.stop()


async def test_a_failed_flush_commits_nothing_and_is_not_tried_again() -> None:
    world = await World.make()
    world.log.failure = OSError(5, "Input/output error")
    told: list[ErrorCode] = []
    proposal = propose(world.replica, batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    await turns()
    assert [str(error) for error in world.failures] == [
        "flush failed: [Errno 5] Input/output error"
    ]
    world.log.failure = None
    propose(world.replica, batch(b"b"))
    await turns()
    assert (world.replica.high_watermark, told, world.log.runs) == (0, [], 1)
    world.stop()


async def test_a_retry_is_answered_with_the_original_and_only_once_committed() -> None:
    world = await World.make()
    first = propose(world.replica, batch(b"a", producer=4, sequence=0))
    again = propose(world.replica, batch(b"a", producer=4, sequence=0))
    assert again == first
    told: list[ErrorCode] = []
    world.replica.when_committed(again.end_offset, told.append)
    assert told == []
    await turns()
    assert told == [ErrorCode.NONE]
    assert values(world.replica) == [b"a"]
    world.stop()


async def test_a_refused_batch_leaves_no_trace() -> None:
    world = await World.make()
    propose(world.replica, batch(b"a", producer=4, sequence=0))
    with pytest.raises(RefusedError):
        propose(world.replica, batch(b"c", producer=4, sequence=2))
    assert propose(world.replica, batch(b"b", producer=4, sequence=1)).base_offset == 1
    assert values(world.replica) == [b"a", b"b"]
    world.stop()


async def test_sequences_survive_a_restart_from_snapshot_and_headers() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, batch(b"a", producer=4, sequence=0))
    world.log.save_snapshot(world.log.end_offset, world.replica.producers.encode())
    propose(world.replica, batch(b"b", producer=4, sequence=1))
    again = await world.restart()
    assert propose(again, batch(b"a", producer=4, sequence=0)).base_offset == 0
    assert propose(again, batch(b"b", producer=4, sequence=1)).base_offset == 1
    assert propose(again, batch(b"c", producer=4, sequence=2)).base_offset == 2
    world.stop()


async def test_a_damaged_snapshot_is_replaced_by_the_headers() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, batch(b"a", producer=4, sequence=0))
    world.log.save_snapshot(world.log.end_offset, b"damaged")
    assert propose(await world.restart(), batch(b"a", producer=4, sequence=0)).base_offset == 0
    world.stop()


async def test_log_append_time_is_the_brokers_and_the_checksum_stays_right() -> None:
    world = await World.make(FlushPolicy.NEVER)
    data = batch(b"a", b"b") + batch(b"c")
    proposal = propose(world.replica, data, append_time=True)
    assert proposal == (0, 3, 1_700_000_000_000)
    stored = [
        (record.offset, record.timestamp)
        for one in world.log.batches(Offset(0))
        for record in read_records(one)
    ]
    assert stored == [(n, 1_700_000_000_000) for n in range(3)]
    world.stop()


async def test_whoever_waits_is_told_when_the_replica_goes() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    world.replica.drop()
    assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    world.stop()


async def test_a_laxer_policy_commits_at_once_what_waited_for_a_flush() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    world.log.failure = OSError(5, "Input/output error")
    world.replica.reconfigure(LogConfig(flush=FlushPolicy.NEVER))
    await until(lambda: told == [ErrorCode.NONE])
    assert world.replica.high_watermark == 1
    world.stop()


async def test_a_stricter_policy_takes_nothing_back_and_waits_from_then_on() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, batch(b"a"))
    await until(lambda: world.replica.high_watermark == 1)
    world.replica.reconfigure(LogConfig(flush=FlushPolicy.ALWAYS))
    assert world.replica.high_watermark == 1
    told: list[ErrorCode] = []
    proposal = propose(world.replica, batch(b"b"))
    world.replica.when_committed(proposal.end_offset, told.append)
    assert (world.replica.high_watermark, told) == (1, [])
    await turns()
    assert (world.replica.high_watermark, told) == (2, [ErrorCode.NONE])
    world.stop()


async def test_what_was_appended_without_a_flush_makes_the_next_one_large() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, batch(bytes(100_000)))
    assert world.replica.group.flush_handle.unflushed_bytes > 100_000
    world.stop()


@pytest.mark.parametrize("work", ["retain", "save_snapshot", "reconfigure"])
async def test_a_disk_that_fails_in_any_work_is_reported(work: str) -> None:
    world = await World.make()

    def fail(*arguments: object) -> None:
        raise StorageError("the disk is gone")

    setattr(world.log, work, fail)
    calls = {
        "retain": lambda: world.replica.retain(TimestampMs(0)),
        "save_snapshot": world.replica.close,
        "reconfigure": lambda: world.replica.reconfigure(LogConfig()),
    }
    with pytest.raises(StorageError):
        calls[work]()
    assert [str(error) for error in world.failures] == ["the disk is gone"]
    world.stop()


async def test_without_room_for_a_snapshot_the_log_is_closed_all_the_same() -> None:
    world = await World.make()
    closed: list[bool] = []

    def full(*arguments: object) -> None:
        raise DiskFullError("no room")

    world.log.save_snapshot = full
    world.log.close = lambda: closed.append(True)
    world.replica.close()
    assert (closed, world.failures) == ([True], [])
    world.stop()


async def test_a_retry_to_a_topic_with_append_time_is_told_the_time_of_the_original() -> None:
    world = await World.make()
    first = propose(world.replica, batch(b"a", producer=4, sequence=0), append_time=True)
    again = propose(world.replica, batch(b"a", producer=4, sequence=0), append_time=True)
    assert first.append_time > 0
    assert again == first
    world.stop()
