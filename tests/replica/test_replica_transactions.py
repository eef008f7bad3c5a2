"""Transactions on replicas: markers are committed as records are, and every copy knows them."""

import asyncio

import pytest
from memory_log import MemoryLog
from raft_brokers import CONFIG, PATIENT
from replica_brokers import ReplicaCluster, make_batch, propose

from moldau.log.interface import LogConfig
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import TRANSACTIONAL_BIT, read_header
from moldau.records.control import EndMarker
from moldau.records.record import Record, build_batch
from moldau.replica.raft_replica import Proposal
from moldau.replica.replica import Replica
from moldau.testing.replicas import ManualClock, lead_replica, make_driver, make_flusher
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

PRODUCER = ProducerId(7)
UNFLUSHED = LogConfig(flush=FlushPolicy.NEVER)
"""No thread is at work when a test ends."""
FIRST = ProducerEpoch(0)


def begin(
    replica: Replica, value: bytes, sequence: int, *, producer: int = 7, epoch: int = 0
) -> Proposal:
    """Write as part of a transaction, which its coordinator knows of."""
    data = bytearray(
        build_batch(
            [Record(Offset(0), TimestampMs(5), None, value, [])],
            producer_id=ProducerId(producer),
            producer_epoch=ProducerEpoch(epoch),
            base_sequence=sequence,
            transactional=True,
        )
    )
    header = read_header(data)
    return replica.propose(data, [header], guard=replica.guard_for(header, "tx"))


async def end(
    replica: Replica,
    *,
    commits: bool = True,
    producer: int = 7,
    epoch: int = 0,
    coordinator: int = 1,
    version: int = 0,
) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    replica.write_marker(
        ProducerId(producer),
        ProducerEpoch(epoch),
        EndMarker(commits, coordinator),
        done.set_result,
        transaction_version=version,
    )
    async with asyncio.timeout(wait_seconds_max()):
        return await done


class Machine:
    """What replicas of one broker share."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall_ms=10_000)
        self.flusher = make_flusher(self.clock)
        self.driver = make_driver(self.flusher, clock=self.clock)

    def stop(self) -> None:
        self.driver.stop()
        self.flusher.stop()

    async def lead(self, log: MemoryLog | None = None) -> Replica:
        return await lead_replica(
            log or MemoryLog(UNFLUSHED), self.flusher, driver=self.driver, clock=self.clock
        )


async def test_a_marker_is_acknowledged_when_it_is_committed_and_moves_what_is_stable() -> None:
    machine = Machine()
    replica = await machine.lead(MemoryLog(LogConfig()))
    begin(replica, b"a", 0)
    begin(replica, b"b", 1)
    told: list[ErrorCode] = []
    replica.write_marker(PRODUCER, FIRST, EndMarker(True, 1), told.append)
    # Nothing is flushed yet.
    assert (told, replica.log.end_offset, replica.last_stable_offset) == ([], 3, 0)
    await until(lambda: bool(told), "it is committed")
    assert (told, replica.last_stable_offset) == ([ErrorCode.NONE], 3)
    machine.stop()


async def test_a_repeated_marker_is_answered_when_the_first_is_committed() -> None:
    machine = Machine()
    replica = await machine.lead(MemoryLog(LogConfig()))
    begin(replica, b"a", 0)
    told: list[ErrorCode] = []
    for _ in range(3):
        replica.write_marker(PRODUCER, FIRST, EndMarker(True, 1), told.append)
    assert (told, replica.log.end_offset) == ([], 2)
    await until(lambda: len(told) == 3, "it is committed")
    assert await end(replica) is ErrorCode.NONE
    assert replica.log.end_offset == 2
    machine.stop()


async def test_a_request_that_waits_for_a_marker_fails_when_the_leader_is_deposed() -> None:
    machine = Machine()
    replica = await machine.lead(MemoryLog(LogConfig()))
    begin(replica, b"a", 0)
    told: list[ErrorCode] = []
    replica.write_marker(PRODUCER, FIRST, EndMarker(True, 1), told.append)
    replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    machine.stop()


async def test_a_refused_marker_leaves_the_log_as_it_is() -> None:
    machine = Machine()
    replica = await machine.lead()
    begin(replica, b"a", 0, epoch=3)
    with pytest.raises(RefusedError) as caught:
        await end(replica, epoch=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await end(replica, epoch=3, coordinator=5) is ErrorCode.NONE
    begin(replica, b"b", 1, epoch=3)
    with pytest.raises(RefusedError) as caught:
        await end(replica, epoch=3, coordinator=4)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert replica.log.end_offset == 3
    machine.stop()


async def test_a_full_disk_refuses_a_marker_and_the_next_try_writes_it() -> None:
    machine = Machine()

    class FullLog(MemoryLog):
        is_full = False

        def append(self, *args: object) -> None:
            if self.is_full:
                raise DiskFullError("no room")
            super().append(*args)  # type: ignore[arg-type]

    log = FullLog(UNFLUSHED)
    replica = await machine.lead(log)
    begin(replica, b"a", 0)
    log.is_full = True
    with pytest.raises(RefusedError) as caught:
        await end(replica)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.producers.is_open(PRODUCER, FIRST)
    log.is_full = False
    assert await end(replica) is ErrorCode.NONE
    assert not replica.producers.is_open(PRODUCER, FIRST)
    machine.stop()


async def test_a_transactional_batch_needs_a_guard_and_its_own() -> None:
    machine = Machine()
    replica = await machine.lead()
    data = make_batch(b"v", producer=7, sequence=0)
    header = read_header(data).replaced(attributes=TRANSACTIONAL_BIT)
    with pytest.raises(RefusedError) as caught:
        replica.propose(data, [header])
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    other = replica.guard_for(header.replaced(producer_id=ProducerId(8)), "tx")
    with pytest.raises(RefusedError) as caught:
        replica.propose(data, [header], guard=other)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    machine.stop()


async def test_neither_a_guard_nor_an_open_transaction_of_another_epoch_is_enough() -> None:
    machine = Machine()
    replica = await machine.lead()
    begin(replica, b"a", 0)
    data = make_batch(b"v", producer=7, sequence=0, epoch=1)
    newer = read_header(data).replaced(attributes=TRANSACTIONAL_BIT)
    with pytest.raises(RefusedError) as caught:
        replica.propose(data, [newer])
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    guard = replica.guard_for(newer, "tx")
    with pytest.raises(RefusedError) as caught:
        replica._guards.check(newer.replaced(producer_epoch=ProducerEpoch(2)), guard, is_open=False)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert replica.propose(data, [newer], guard=guard).base_offset == 1
    machine.stop()


async def test_a_batch_of_a_producer_beside_others_is_refused_wherever_it_stands() -> None:
    machine = Machine()
    replica = await machine.lead()
    plain, numbered = make_batch(b"p"), make_batch(b"n", producer=7, sequence=0)
    for data in (plain + numbered, numbered + plain):
        with pytest.raises(RefusedError) as caught:
            propose(replica, data)
        assert caught.value.code is ErrorCode.INVALID_RECORD
    assert replica.log.end_offset == 0
    machine.stop()


async def test_an_unused_guard_is_forgotten_with_its_producer() -> None:
    machine = Machine()
    replica = await machine.lead()
    header = read_header(make_batch(b"v", producer=7, sequence=0))
    guard = replica.guard_for(header.replaced(attributes=TRANSACTIONAL_BIT), "tx")
    assert guard is not None
    replica.expire_producers(TimestampMs(guard.made_at))
    assert len(replica._guards) == 1
    replica.expire_producers(TimestampMs(guard.made_at + 1))
    assert len(replica._guards) == 0
    machine.stop()


async def test_aborted_transactions_go_with_the_records_that_are_deleted() -> None:
    machine = Machine()
    log = MemoryLog(LogConfig(retention_ms=1_000, flush=FlushPolicy.NEVER))
    replica = await machine.lead(log)
    begin(replica, b"a", 0)
    assert await end(replica, commits=False) is ErrorCode.NONE
    assert len(replica.producers.aborted) == 1
    machine.clock.wall = TimestampMs(20_000)
    assert replica.retain(machine.clock.wall)
    assert (log.start_offset, len(replica.producers.aborted)) == (2, 0)
    assert replica.last_stable_offset == 2
    machine.stop()


async def test_an_open_transaction_holds_a_trimmed_log_at_its_start() -> None:
    machine = Machine()
    replica = await machine.lead()
    begin(replica, b"a", 0)
    propose(replica, make_batch(b"p"))
    await until(lambda: replica.high_watermark == 2, "it is committed")
    told: list[ErrorCode] = []
    replica.trim(Offset(1), told.append)
    await until(lambda: bool(told), "it is trimmed")
    assert (replica.log.start_offset, replica.last_stable_offset) == (1, 1)
    machine.stop()


async def test_a_transaction_that_ended_in_a_part_that_is_gone_does_not_come_back() -> None:
    machine = Machine()
    log = MemoryLog(UNFLUSHED)
    replica = await machine.lead(log)
    begin(replica, b"a", 0)
    replica._save_snapshot()
    assert await end(replica) is ErrorCode.NONE
    propose(replica, make_batch(b"p"))
    begin(replica, b"open", 0, producer=8)
    await until(lambda: replica.high_watermark == 4, "it is committed")
    replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log.delete_before(Offset(2))
    # The snapshot knows of the beginning only, and the log of neither.
    again = await machine.lead(log)
    await until(lambda: again.high_watermark == 4, "it is committed")
    assert again.last_stable_offset == 3
    # Nor is it known which number it has reached: it may go on with any.
    assert again.producers.get(PRODUCER) is None
    machine.stop()


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_what_only_deleted_records_held_of_producers_is_known_after_a_restart(
    is_trimmed: bool,
) -> None:
    machine = Machine()
    log = MemoryLog(LogConfig(retention_ms=1_000, flush=FlushPolicy.NEVER))
    replica = await machine.lead(log)
    begin(replica, b"a", 0)
    assert await end(replica, commits=False, coordinator=4) is ErrorCode.NONE
    machine.clock.wall = TimestampMs(20_000)
    if is_trimmed:
        told: list[ErrorCode] = []
        replica.trim(Offset(2), told.append)
        await until(lambda: bool(told), "it is trimmed")
    else:
        assert replica.retain(machine.clock.wall)
    assert len(replica.producers.aborted) == 0
    replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    again = await machine.lead(log)
    state = again.producers.get(PRODUCER)
    assert state is not None
    assert (state.coordinator_epoch, state.batches[-1].last_sequence) == (4, 0)
    machine.stop()


async def test_a_restart_lists_nothing_that_was_aborted_below_the_start() -> None:
    machine = Machine()
    log = MemoryLog(UNFLUSHED)
    replica = await machine.lead(log)
    for number in range(2):
        begin(replica, b"a", number)
        assert await end(replica, commits=False) is ErrorCode.NONE
    replica._save_snapshot()
    replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    # As a crash just after the deletion leaves it.
    log.delete_before(Offset(2))
    again = await machine.lead(log)
    assert [span.first for span in again.producers.aborted.all()] == [2]
    machine.stop()


# ---- several brokers


def knowledge(replica: Replica) -> tuple[object, ...]:
    return (
        replica.last_stable_offset,
        replica.producers.first_unstable,
        replica.producers.aborted.all(),
        sorted(
            (producer, state.epoch, state.first, state.coordinator_epoch)
            for producer, state in replica.producers
        ),
    )


async def test_followers_know_what_their_leader_knows_and_lead_on_with_it() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        begin(leader.replica, b"aborted", 0)
        begin(leader.replica, b"open", 0, producer=8)
        assert await end(leader.replica, commits=False) is ErrorCode.NONE
        begin(leader.replica, b"again", 0, epoch=1)
        assert await end(leader.replica, epoch=2, version=2) is ErrorCode.NONE
        await cluster.alike()
        expected = knowledge(leader.replica)
        assert expected[0] == 1
        assert [knowledge(broker.replica) for broker in cluster.running] == [expected] * 3
        other = next(broker for broker in cluster.running if broker is not leader)
        successor = await cluster.lead(int(other.id))
        begin(successor.replica, b"goes on", 1, producer=8)
        assert await end(successor.replica, producer=8, commits=False) is ErrorCode.NONE
        await cluster.alike()
        assert {broker.replica.last_stable_offset for broker in cluster.running} == {7}
        assert {len(broker.replica.producers.aborted) for broker in cluster.running} == {2}


async def test_a_marker_that_was_not_committed_is_taken_back_with_what_it_ended() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        begin(leader.replica, b"open", 0)
        await cluster.alike()
        cluster.cut_off(leader)
        told: list[ErrorCode] = []
        leader.replica.write_marker(PRODUCER, FIRST, EndMarker(True, 1), told.append)
        assert not leader.replica.producers.is_open(PRODUCER, FIRST)
        assert leader.replica.last_stable_offset == 0
        cluster.use(CONFIG)
        await until(lambda: bool(told), "it is answered")
        successor = await cluster.ready(other_than=int(leader.id))
        cluster.use(PATIENT)
        assert successor.replica.producers.is_open(PRODUCER, FIRST)
        assert await end(successor.replica, commits=False) is ErrorCode.NONE
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        cluster.introduce()
        await cluster.alike()
        expected = knowledge(successor.replica)
        assert [knowledge(broker.replica) for broker in cluster.running] == [expected] * 3
        assert len(successor.replica.producers.aborted) == 1


async def test_a_guard_does_not_outlast_the_leader_that_gave_it() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        data = make_batch(b"v", producer=7, sequence=0)
        header = read_header(data).replaced(attributes=TRANSACTIONAL_BIT)
        guard = leader.replica.guard_for(header, "tx")
        other = next(broker for broker in cluster.running if broker is not leader)
        await cluster.lead(int(other.id))
        assert await end(other.replica) is ErrorCode.NONE
        await cluster.lead(int(leader.id))
        with pytest.raises(RefusedError) as caught:
            leader.replica.propose(data, [header], guard=guard)
        # The retry asks the coordinator, which knows that the transaction ended.
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_a_batch_whose_verification_outlived_the_leadership_is_retried() -> None:
    async with ReplicaCluster(3, config=PATIENT) as cluster:
        cluster.add_group()
        leader = await cluster.ready()
        data = make_batch(b"v", producer=7, sequence=0)
        header = read_header(data).replaced(attributes=TRANSACTIONAL_BIT)
        guard = leader.replica.guard_for(header, "tx")
        other = next(broker for broker in cluster.running if broker is not leader)
        await cluster.lead(int(other.id))
        await cluster.lead(int(leader.id))
        with pytest.raises(RefusedError) as caught:
            leader.replica.propose(data, [header], guard=guard)
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        again = leader.replica.guard_for(header, "tx")
        assert leader.replica.propose(data, [header], guard=again).base_offset == 0
