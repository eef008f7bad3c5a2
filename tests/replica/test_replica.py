"""A replica commits what is flushed, in order, and tells whoever waits. On the in-memory log."""

import asyncio
import threading
from collections.abc import Mapping

import pytest
from memory_log import MemoryLog
from replica_brokers import make_batch, propose, said_by, values
from replica_world import World, turns

from moldau.log.interface import LogConfig
from moldau.model.errors import (
    CorruptionError,
    DiskFullError,
    ErrorCode,
    RefusedError,
    StorageError,
)
from moldau.model.flush import FlushPolicy
from moldau.model.ids import BrokerId, Epoch, Offset, PartitionIndex, TimestampMs, TopicId
from moldau.records.record import read_records
from moldau.replica.flusher import FlushHandle
from moldau.replica.peer_codec import GroupKey
from moldau.replica.producer_snapshot import encode_producers
from moldau.testing.logs import append
from moldau.testing.replicas import (
    ME,
    MemoryVotes,
    lead_replica,
    make_driver,
    make_flusher,
    open_replica,
    wait_ready,
)
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


async def test_the_first_record_of_a_new_partition_gets_offset_zero_in_epoch_zero() -> None:
    world = await World.make()
    proposal = propose(world.replica, make_batch(b"a", b"b"))
    assert (proposal.base_offset, proposal.end_offset) == (0, 2)
    assert world.replica.epoch == 0
    assert next(iter(world.log.headers(Offset(0)))).leader_epoch == 0
    world.stop()


async def test_a_replica_without_others_leads_alone_until_it_is_closed() -> None:
    world = await World.make()
    assert world.replica.group.leads_alone
    world.stop()
    assert not world.replica.group.leads_alone


async def test_offsets_are_dense_across_elections() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a"))
    again = await world.restart()
    assert again.epoch == 1
    assert propose(again, make_batch(b"b")).base_offset == 1
    await until(lambda: again.high_watermark == 2, "it is committed")
    world.stop()


async def test_nothing_is_committed_before_its_flush() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    assert (world.replica.high_watermark, told, world.log.runs) == (0, [], 0)
    await until(lambda: bool(told), "it is committed")
    assert (world.replica.high_watermark, told) == (1, [ErrorCode.NONE])
    assert world.log.runs == 1
    world.stop()


async def test_what_is_appended_in_one_turn_shares_one_flush() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    for number in range(50):
        proposal = propose(world.replica, make_batch(b"%d" % number))
        world.replica.when_committed(proposal.end_offset, told.append)
    await until(lambda: len(told) == 50, "all are committed")
    assert len(told) == 50
    assert world.log.runs == 1
    world.stop()


async def test_what_is_appended_during_a_flush_is_committed_by_the_next_one() -> None:
    world = await World.make()
    gate = world.log.gate = threading.Event()
    told: list[str] = []
    first = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(first.end_offset, lambda _: told.append("first"))
    await until(lambda: world.log.runs == 1, "the flush runs")
    second = propose(world.replica, make_batch(b"b"))
    world.replica.when_committed(second.end_offset, lambda _: told.append("second"))
    later = world.log.gate = threading.Event()
    gate.set()
    await until(lambda: world.log.runs == 2, "the flush runs")
    assert (told, world.replica.high_watermark) == (["first"], 1)
    later.set()
    await until(lambda: len(told) == 2, "both are committed")
    assert (told, world.replica.high_watermark) == (["first", "second"], 2)
    world.stop()


@pytest.mark.parametrize("policy", [FlushPolicy.NEVER, FlushPolicy.INTERVAL])
async def test_with_a_laxer_policy_appended_counts_as_committed(policy: FlushPolicy) -> None:
    world = await World.make(policy)
    world.log.failure = OSError(5, "Input/output error")
    propose(world.replica, make_batch(b"a"))
    await until(lambda: world.replica.high_watermark == 1, "it is committed")
    assert (world.log.runs, world.failures) == (0, [])
    world.stop()


async def test_waiters_are_called_in_the_order_of_offsets() -> None:
    world = await World.make()
    called: list[str] = []
    first = propose(world.replica, make_batch(b"a"))
    second = propose(world.replica, make_batch(b"b"))
    world.replica.when_committed(second.end_offset, lambda _: called.append("second"))
    world.replica.when_committed(first.end_offset, lambda _: called.append("first"))
    await until(lambda: len(called) == 2, "both are called")
    assert called == ["first", "second"]
    world.stop()


async def test_a_failed_flush_commits_nothing_and_is_not_tried_again() -> None:
    world = await World.make()
    world.log.failure = OSError(5, "Input/output error")
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    await until(lambda: bool(world.failures), "the flush fails")
    assert [str(error) for error in world.failures] == [
        "flush failed: [Errno 5] Input/output error"
    ]
    world.log.failure = None
    propose(world.replica, make_batch(b"b"))
    await turns()
    assert (world.replica.high_watermark, told, world.log.runs) == (0, [], 1)
    world.stop()


async def test_a_retry_is_answered_with_the_original_and_only_once_committed() -> None:
    world = await World.make()
    first = propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    again = propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    assert said_by(again) == said_by(first)
    told: list[ErrorCode] = []
    world.replica.when_committed(again.end_offset, told.append)
    assert told == []
    await until(lambda: bool(told), "it is committed")
    assert told == [ErrorCode.NONE]
    assert values(world.replica) == [b"a"]
    world.stop()


async def test_a_refused_batch_leaves_no_trace() -> None:
    world = await World.make()
    propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    with pytest.raises(RefusedError):
        propose(world.replica, make_batch(b"c", producer=4, sequence=2))
    assert propose(world.replica, make_batch(b"b", producer=4, sequence=1)).base_offset == 1
    assert values(world.replica) == [b"a", b"b"]
    world.stop()


async def test_sequences_survive_a_restart_from_snapshot_and_headers() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    world.log.save_snapshot(world.log.end_offset, encode_producers(world.replica.producers))
    propose(world.replica, make_batch(b"b", producer=4, sequence=1))
    again = await world.restart()
    assert propose(again, make_batch(b"a", producer=4, sequence=0)).base_offset == 0
    assert propose(again, make_batch(b"b", producer=4, sequence=1)).base_offset == 1
    assert propose(again, make_batch(b"c", producer=4, sequence=2)).base_offset == 2
    world.stop()


async def test_a_damaged_snapshot_is_replaced_by_the_headers() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    world.log.save_snapshot(world.log.end_offset, b"damaged")
    assert propose(await world.restart(), make_batch(b"a", producer=4, sequence=0)).base_offset == 0
    world.stop()


async def test_log_append_time_is_the_brokers_and_the_checksum_stays_right() -> None:
    world = await World.make(FlushPolicy.NEVER)
    data = make_batch(b"a", b"b") + make_batch(b"c")
    proposal = propose(world.replica, data, append_time=True)
    assert (proposal.base_offset, proposal.end_offset) == (0, 3)
    assert proposal.append_time == 1_700_000_000_000
    stored = [
        (record.offset, record.timestamp)
        for one in world.log.batches(Offset(0))
        for record in read_records(one)
    ]
    assert stored == [(n, 1_700_000_000_000) for n in range(3)]
    world.stop()


async def test_a_waiting_request_fails_when_the_replica_is_removed() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    world.replica.drop()
    assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    world.stop()


async def test_a_laxer_policy_commits_at_once_what_waited_for_a_flush() -> None:
    world = await World.make()
    gate = world.log.gate = threading.Event()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    await until(lambda: world.log.runs == 1, "the flush runs")
    # It waits for no flush: neither for the one that hangs, nor for one that is asked for now.
    asked: list[FlushHandle] = []
    world.flusher.request = (  # type: ignore[method-assign]
        lambda handle, appended_bytes: asked.append(handle)
    )
    world.replica.reconfigure(LogConfig(flush=FlushPolicy.NEVER))
    await until(lambda: told == [ErrorCode.NONE], "it is committed")
    assert asked == [world.replica.group.flush_handle]
    assert world.replica.high_watermark == 1
    gate.set()
    world.stop()


async def test_a_stricter_policy_takes_nothing_back_and_waits_from_then_on() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a"))
    await until(lambda: world.replica.high_watermark == 1, "it is committed")
    world.replica.reconfigure(LogConfig(flush=FlushPolicy.ALWAYS))
    assert world.replica.high_watermark == 1
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"b"))
    world.replica.when_committed(proposal.end_offset, told.append)
    assert (world.replica.high_watermark, told) == (1, [])
    await until(lambda: bool(told), "it is committed")
    assert (world.replica.high_watermark, told) == (2, [ErrorCode.NONE])
    world.stop()


async def test_what_was_appended_without_a_flush_makes_the_next_one_large() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(bytes(100_000)))
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


@pytest.mark.parametrize("error", [StorageError("the disk is gone"), DiskFullError("no room")])
async def test_a_batch_that_the_disk_does_not_take_leaves_no_trace(error: StorageError) -> None:
    world = await World.make()
    append_whole = world.log.append

    def fail(*arguments: object) -> None:
        raise error

    world.log.append = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageError):
        propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    assert world.failures == ([] if isinstance(error, DiskFullError) else [error])
    world.log.append = append_whole  # type: ignore[method-assign]
    assert propose(world.replica, make_batch(b"a", producer=4, sequence=0)).base_offset == 0
    assert values(world.replica) == [b"a"]
    world.stop()


async def test_without_room_for_a_snapshot_the_log_is_closed_all_the_same() -> None:
    world = await World.make()
    closed: list[bool] = []

    def full(*arguments: object) -> None:
        raise DiskFullError("no room")

    world.log.save_snapshot = full  # type: ignore[method-assign, assignment]
    world.log.close = lambda: closed.append(True)  # type: ignore[method-assign]
    world.replica.close()
    assert (closed, world.failures) == ([True], [])
    world.stop()


async def test_a_retry_to_a_topic_with_append_time_gets_the_time_of_the_original() -> None:
    world = await World.make()
    first = propose(world.replica, make_batch(b"a", producer=4, sequence=0), append_time=True)
    again = propose(world.replica, make_batch(b"a", producer=4, sequence=0), append_time=True)
    assert first.append_time > 0
    assert said_by(again) == said_by(first)
    world.stop()


# ---- what a group of one voter keeps to


class SlowVotes(MemoryVotes):
    """Writes votes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def record(self, votes: Mapping[str, tuple[Epoch, BrokerId]]) -> None:
        assert self.gate.wait(wait_seconds_max())
        super().record(votes)


async def test_an_election_is_won_only_after_the_vote_is_durable() -> None:
    flusher, votes, log = make_flusher(), SlowVotes(), MemoryLog()
    driver = make_driver(flusher, votes=votes)
    replica = open_replica(log, flusher, driver)
    await turns()
    assert (replica.is_leader, log.end_index) == (False, 0)
    with pytest.raises(RefusedError) as refused:
        propose(replica, make_batch(b"a"))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    votes.gate.set()
    await wait_ready(replica)
    assert votes.get(replica.group.name) == (0, ME)
    assert [entry.epoch for entry in log.controls()] == [0]
    driver.stop()
    flusher.stop()


@pytest.mark.parametrize(("voted", "stored", "epoch"), [(7, 3, 8), (1, 5, 6), (4, 4, 5)])
async def test_a_new_epoch_is_above_all_that_votes_and_log_have_seen(
    voted: int, stored: int, epoch: int
) -> None:
    flusher, votes, log = make_flusher(), MemoryVotes(), MemoryLog()
    append(log, epoch=stored)
    name = GroupKey(TopicId(bytes(16)), PartitionIndex(0)).name
    votes.record({name: (Epoch(voted), ME)})
    driver = make_driver(flusher, votes=votes)
    replica = await lead_replica(log, flusher, driver=driver)
    assert replica.epoch == epoch
    assert replica.high_watermark == 1
    driver.stop()
    flusher.stop()


async def test_what_an_earlier_epoch_stored_is_committed_only_with_the_own_no_op() -> None:
    world = World(FlushPolicy.ALWAYS)
    gate = world.log.gate = threading.Event()
    append(world.log, epoch=0)
    replica = open_replica(world.log, world.flusher, world.driver, clock=world.clock)
    await until(lambda: replica.is_leader and world.log.runs, "its no-op is being flushed")
    assert (replica.is_leader, replica.is_ready, replica.high_watermark) == (True, False, 0)
    gate.set()
    await wait_ready(replica)
    assert replica.high_watermark == 1
    world.stop()


async def test_the_high_watermark_never_goes_back() -> None:
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a", b"b"))
    await until(lambda: world.replica.high_watermark == 2, "it is committed")
    world.replica.on_commit(world.replica.group, Offset(1))
    assert world.replica.high_watermark == 2
    world.stop()


async def test_a_trim_that_is_committed_within_its_own_call_is_answered() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    # So many proposals in one turn of the loop end it early.
    for _ in range(20):
        world.replica.trim(Offset(0), told.append)
    await until(lambda: len(told) == 20, "all are answered")
    assert set(told) == {ErrorCode.NONE}
    world.stop()


async def test_who_does_not_lead_any_more_promises_nothing_of_what_it_was_proposed() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    world.replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.replica.when_committed(Offset(world.replica.high_watermark + 1), told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(RefusedError):
        await asyncio.wait_for(world.replica.confirm_leadership(), wait_seconds_max())
    world.stop()


@pytest.mark.parametrize("error", [StorageError("the disk is gone"), DiskFullError("no room")])
async def test_a_trim_on_a_full_disk_waits_for_room_and_a_failed_disk_is_reported(
    error: StorageError,
) -> None:
    world = await World.make()
    defects: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: defects.append(context.get("exception"))
    )
    propose(world.replica, make_batch(b"a"))
    await until(lambda: world.replica.high_watermark == 1, "it is committed")
    delete_before = world.log.delete_before

    def fail(offset: Offset) -> None:
        raise error

    world.log.delete_before = fail  # type: ignore[method-assign]
    told: list[ErrorCode] = []
    world.replica.trim(Offset(1), told.append)
    if isinstance(error, DiskFullError):
        await until(lambda: bool(told), "it is answered")
        assert (world.failures, told) == ([], [ErrorCode.KAFKA_STORAGE_ERROR])
        assert (defects, world.log.start_offset) == ([], 0)
        # It is agreed on, so it comes when there is room.
        world.log.delete_before = delete_before  # type: ignore[method-assign]
        world.replica.retain(TimestampMs(0))
        assert (world.log.start_offset, len(told)) == (1, 1)
    else:
        await until(lambda: bool(world.failures), "the disk fails")
        assert (world.failures, world.log.start_offset) == ([error], 0)
        assert (defects, told) == ([], [ErrorCode.KAFKA_STORAGE_ERROR])
    world.stop()


async def test_a_producer_snapshot_is_taken_after_much_data_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.replica.replica._SNAPSHOT_BYTES", 1000)
    world = await World.make(FlushPolicy.NEVER)
    propose(world.replica, make_batch(b"a", producer=4, sequence=0))
    world.replica.snapshot_if_due()
    assert world.log.load_snapshot() is None
    propose(world.replica, make_batch(bytes(1000), producer=4, sequence=1))
    world.replica.snapshot_if_due()
    assert world.log.load_snapshot() == (2, encode_producers(world.replica.producers))
    propose(world.replica, make_batch(b"b", producer=4, sequence=2))
    world.replica.snapshot_if_due()
    known = world.replica.producers.below(Offset(2))
    assert world.log.load_snapshot() == (2, encode_producers(known))
    world.stop()


async def test_a_failed_group_answers_all_and_notifies_its_host() -> None:
    world = await World.make()
    told: list[ErrorCode] = []
    proposal = propose(world.replica, make_batch(b"a"))
    world.replica.when_committed(proposal.end_offset, told.append)
    error = CorruptionError("damaged")
    world.replica.on_failed(world.replica.group, error)
    assert (told, world.listener.failures) == ([ErrorCode.KAFKA_STORAGE_ERROR], [error])
    assert (world.replica.is_leader, world.replica.is_ready) == (False, False)
    world.stop()
