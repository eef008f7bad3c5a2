"""Leaders of __queue_state store queues for whoever leads those, on any broker."""

import asyncio
from typing import Any

import msgspec
import pytest
from group_world import ME, OTHER, turns
from ledger_world import LedgerWorld, QueueLeader, encoded, written

from moldau.coordination import coordinator_service as coordination_module
from moldau.leases.records import SLOTS
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId
from moldau.metadata.image import QUEUE_STATE_TOPIC, Image
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, TopicId
from moldau.net.peers.methods import PeerMethod
from moldau.queues import ledger_host as keeper_module
from moldau.queues import ledgers as ledgers_module
from moldau.queues.ledgers import LedgerRequest


async def led(world: LedgerWorld, queue: QueueId, epoch: int = 1) -> QueueLeader:
    """A leader of the queue that has taken over."""
    leader = QueueLeader(world.ledgers, queue, epoch)
    await leader.take_over()
    return leader


def asking(work: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked a second time."""
    monkeypatch.setattr(ledgers_module, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(coordination_module, "_POLLS_MAX", 1)


# ---- writing


async def test_what_is_written_is_what_the_next_leader_of_the_queue_loads() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue())
    await leader.work(3)
    token = await leader.poll()
    after = QueueLeader(world.ledgers, leader.queue, epoch=2)
    await after.load()
    assert after.machine.state.sequence == leader.machine.state.sequence == 8
    assert after.machine.state.floor == token.offset == 3


async def test_a_new_queue_has_nothing_stored() -> None:
    world = LedgerWorld()
    world.lead()
    assert await world.ledgers.stored(world.queue()) == []


async def test_a_write_is_answered_when_it_is_committed_and_not_before() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue())
    replica = world.replicas[world.index_of(leader.queue)]
    replica.holds = True
    polling = asking(leader.poll())
    await turns(10)
    assert not polling.done()
    replica.commit()
    assert (await polling).offset == 0


async def test_records_that_were_decided_together_are_one_batch() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue())
    index = world.index_of(leader.queue)
    before = world.batches(index)
    poll = leader.poll_command(messages=2)
    await leader.do(poll, poll)
    assert world.batches(index) == before + 1
    assert leader.machine.state.sequence == len(world.records(index)) == 3


async def test_records_in_a_batch_that_do_not_follow_one_another_are_not_written() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    record = leader.next_record()
    fate = await written(world.ledgers.write(leader.queue, [record, record]))
    assert fate is Refusal.OUT_OF_STEP
    assert len(world.records(0)) == 1


async def test_a_leader_of_an_earlier_epoch_is_fenced() -> None:
    world = LedgerWorld()
    world.lead()
    old = await led(world, world.queue())
    new = await led(world, old.queue, epoch=2)
    count = len(world.records(world.index_of(old.queue)))
    record = old.next_record()
    assert await written(world.ledgers.write(old.queue, [record])) is Refusal.FENCED
    assert len(world.records(world.index_of(old.queue))) == count
    assert (await new.poll()).offset == 0


async def test_a_record_that_does_not_follow_is_not_written() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue())
    record = leader.next_record()
    count = len(world.records(world.index_of(leader.queue)))
    assert await written(world.ledgers.write(leader.queue, [record])) is Refusal.NONE
    assert await written(world.ledgers.write(leader.queue, [record])) is Refusal.OUT_OF_STEP
    assert len(world.records(world.index_of(leader.queue))) == count + 1


async def test_queues_of_one_ledger_are_written_side_by_side() -> None:
    world = LedgerWorld()
    world.lead()
    leaders = [await led(world, world.queue(group, index=0)) for group in "abc"]
    world.replicas[0].holds = True
    before = len(world.records(0))
    polls = [asking(leader.poll()) for leader in leaders]
    await turns(10)
    assert len(world.records(0)) == before + 3
    world.replicas[0].commit()
    assert [token.offset for token in await asyncio.gather(*polls)] == [0, 0, 0]


async def test_of_one_queue_the_next_is_judged_when_the_one_before_is_committed() -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    leader = await led(world, queue)
    record = leader.next_record()
    world.replicas[0].holds = True
    first = asking(written(world.ledgers.write(queue, [record])))
    await turns(5)
    second = asking(written(world.ledgers.write(queue, [record])))
    reading = asking(world.ledgers.stored(queue))
    await turns(10)
    assert not any(each.done() for each in (first, second, reading))
    world.replicas[0].commit()
    assert (await first, await second) == (Refusal.NONE, Refusal.OUT_OF_STEP)
    assert (await reading)[-1:] == encoded(record)


async def test_too_many_that_wait_for_one_queue_are_sent_away(hasty: None) -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    leader = await led(world, queue)
    world.replicas[0].holds = True
    record = leader.next_record()
    writes = [asking(written(world.ledgers.write(queue, [record]))) for _ in range(40)]
    await turns(10)
    refused = [write.result() for write in writes if write.done()]
    assert 0 < len(refused) < 40
    assert set(refused) == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    world.replicas[0].commit()
    results = await asyncio.gather(*writes)
    assert results.count(Refusal.NONE) == 1


async def test_what_could_not_be_appended_leaves_the_ledger_as_it_was() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    world.replicas[0].refusal = DiskFullError("no room")
    record = leader.next_record()
    storage_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert await written(world.ledgers.write(leader.queue, [record])) is storage_error
    world.replicas[0].refusal = None
    assert await written(world.ledgers.write(leader.queue, [record])) is Refusal.NONE


async def test_a_commit_that_does_not_come_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    world.replicas[0].holds = True
    monkeypatch.setattr(keeper_module, "RESPONSE_SECONDS_MAX", 0.01)
    record = leader.next_record()
    assert await written(world.ledgers.write(leader.queue, [record])) is ErrorCode.REQUEST_TIMED_OUT
    monkeypatch.undo()
    # Whoever wrote loads anew, and learns what became of it.
    reading = asking(world.ledgers.stored(leader.queue))
    await turns(10)
    assert not reading.done()
    world.replicas[0].commit()
    assert (await reading)[-1:] == encoded(record)


async def test_a_name_that_cannot_be_stored_is_refused() -> None:
    world = LedgerWorld()
    world.lead()
    queue = QueueId("", TopicId(bytes(16)), PartitionIndex(0))
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.stored(queue)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


# ---- leadership


async def test_a_write_in_doubt_is_not_written_again_by_the_next_leader() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    count = len(world.records(0))
    world.replicas[0].holds = True
    writing = asking(written(world.ledgers.write(leader.queue, [leader.next_record()])))
    await turns(5)
    world.depose(0)
    world.lead(0)
    assert await writing is ErrorCode.REQUEST_TIMED_OUT
    await turns(20)
    assert len(world.records(0)) == count + 1


async def test_who_waited_in_line_when_leadership_was_lost_is_served_by_the_next_leader() -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    leader = await led(world, queue)
    record = leader.next_record()
    world.replicas[0].holds = True
    first = asking(written(world.ledgers.write(queue, [record])))
    await turns(5)
    second = asking(written(world.ledgers.write(queue, [record])))
    await turns(5)
    world.depose(0)
    # The new leader does not have what was appended.
    world.replicas[0].cut()
    world.replicas[0].holds = False
    world.lead(0, broker=OTHER)
    assert await first is ErrorCode.REQUEST_TIMED_OUT
    assert await second is Refusal.NONE
    assert (await world.ledgers.stored(queue))[-1:] == encoded(record)


async def test_an_append_whose_fate_is_unknown_ends_the_ledger_and_it_is_loaded_again() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    record = leader.next_record()
    world.replicas[0].holds = True
    writing = asking(written(world.ledgers.write(leader.queue, [record])))
    await turns(5)
    world.replicas[0].settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await writing is ErrorCode.REQUEST_TIMED_OUT
    # Still the leader, in the same epoch. What was appended counts once it is committed.
    reading = asking(world.ledgers.stored(leader.queue))
    await turns(10)
    assert not reading.done()
    world.replicas[0].commit()
    assert (await reading)[-1:] == encoded(record)


async def test_a_leader_that_others_have_replaced_does_not_tell_what_it_stores(hasty: None) -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    world.replicas[0].is_deposed = True
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.stored(leader.queue)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR


async def test_without_a_leader_no_request_waits_forever(hasty: None) -> None:
    world = LedgerWorld()
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.stored(world.queue())
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_leader_that_is_elected_soon_is_waited_for() -> None:
    world = LedgerWorld()
    reading = asking(world.ledgers.stored(world.queue()))
    await turns(5)
    assert not reading.done()
    world.lead()
    assert await reading == []


async def test_the_topic_is_created_when_the_first_queue_shows_up() -> None:
    world = LedgerWorld(bare=True)
    world.created = world.lead
    leader = await led(world, world.queue())
    assert world.image.topics[QUEUE_STATE_TOPIC].internal
    assert leader.machine.is_leading


async def test_no_client_may_create_the_topic() -> None:
    world = LedgerWorld(bare=True)
    with pytest.raises(RefusedError) as refused:
        world.create(QUEUE_STATE_TOPIC)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_ledger_that_is_stopped_answers_all_waiting_requests(hasty: None) -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    leader = await led(world, queue)
    world.replicas[0].holds = True
    writing = asking(written(world.ledgers.write(queue, [leader.next_record()])))
    await turns(5)
    world.ledgers.reject_waiting()
    await turns(5)
    assert not writing.done()
    world.replicas[0].commit()
    assert await writing is Refusal.NONE
    world.ledgers.reject_waiting()
    record = leader.next_record()
    assert await written(world.ledgers.write(queue, [record])) is ErrorCode.NOT_COORDINATOR


# ---- loading


async def test_a_queue_is_whole_after_compaction() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    await leader.work(SLOTS + 20)
    token = await leader.poll()
    before = await world.ledgers.stored(leader.queue)
    written_before = len(world.records(0))
    assert world.compact(0) <= SLOTS + 1 < written_before
    await world.reload(0)
    assert await world.ledgers.stored(leader.queue) == before
    after = await led(world, leader.queue, epoch=2)
    assert after.machine.state.floor == token.offset == SLOTS + 20
    assert after.machine.state.open[token.offset].attempts == 1


async def test_a_ledger_that_lacks_a_record_takes_its_replica_offline(hasty: None) -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    await leader.work(2)
    world.drop(0, number=1)
    await world.reload(0)
    assert world.brokers[ME].offline == [0]
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.stored(leader.queue)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.defects == []


# ---- forgetting


async def test_a_queue_that_is_forgotten_is_gone_after_compaction_too() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue("a", index=0))
    other = await led(world, world.queue("b", index=0))
    await leader.work(3)
    batches = world.batches(0)
    await world.ledgers.forget(leader.queue)
    assert world.batches(0) == batches + 1
    assert await world.ledgers.stored(leader.queue) == []
    assert world.compact(0) == 1
    await world.reload(0)
    assert await world.ledgers.stored(leader.queue) == []
    assert len(await world.ledgers.stored(other.queue)) == 1


async def test_the_leader_of_a_queue_that_was_forgotten_does_not_bring_it_back() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue(index=0))
    record = leader.next_record()
    await world.ledgers.forget(leader.queue)
    assert await written(world.ledgers.write(leader.queue, [record])) is Refusal.OUT_OF_STEP
    # A group of the same name begins anew.
    assert (await (await led(world, leader.queue, epoch=2)).poll()).offset == 0


async def test_to_forget_what_never_was_writes_nothing() -> None:
    world = LedgerWorld()
    world.lead()
    await world.ledgers.forget(world.queue(index=0))
    assert world.records(0) == []


async def test_queues_of_a_deleted_topic_are_forgotten() -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    await led(world, queue)
    world.delete("t")
    await turns(20)
    assert await world.ledgers.stored(queue) == []


async def test_queues_of_a_topic_that_was_deleted_while_there_was_no_leader_are_forgotten() -> None:
    world = LedgerWorld()
    world.lead()
    queue = world.queue(index=0)
    await led(world, queue)
    world.depose(0)
    world.delete("t")
    world.create("t")
    world.lead(0)
    await turns(20)
    assert await world.ledgers.stored(queue) == []
    assert world.compact(0) == 0


async def test_a_queue_of_a_topic_that_is_newer_than_the_fresh_image_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = LedgerWorld()
    world.lead()
    await led(world, world.queue(index=0))
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow() -> Image:
        image = world.image
        asked.set()
        await may_answer.wait()
        return image

    monkeypatch.setattr(world.ledgers, "_fresh_image", slow)
    world.delete("t")
    await asked.wait()
    # All this while the answer is under way.
    world.create("t")
    queue = world.queue(index=0)
    leader = await led(world, queue)
    await leader.work(2)
    may_answer.set()
    await turns(20)
    after = await led(world, queue, epoch=2)
    assert after.machine.state.floor == 2


# ---- other brokers


async def test_the_ledger_of_another_broker_is_used_like_ones_own() -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    leader = await led(world, world.queue())
    await leader.work(2)
    after = await led(world, leader.queue, epoch=2)
    assert after.machine.state.floor == 2
    record = leader.next_record()
    assert await written(world.ledgers.write(leader.queue, [record])) is Refusal.FENCED
    await world.ledgers.forget(leader.queue)
    assert await world.ledgers.stored(leader.queue) == []
    assert {method for _, method in world.calls} == {
        PeerMethod.LEDGER_READ,
        PeerMethod.LEDGER_WRITE,
        PeerMethod.LEDGER_FORGET,
    }


async def test_a_write_whose_answer_is_lost_is_not_sent_again() -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    leader = await led(world, world.queue())
    record = leader.next_record()
    world.answers_to_lose = 1
    calls = len(world.calls)
    fate = await written(world.ledgers.write(leader.queue, [record]))
    assert fate is ErrorCode.NETWORK_EXCEPTION
    assert len(world.calls) == calls + 1
    # A question that changes nothing is.
    world.answers_to_lose = 2
    assert (await world.ledgers.stored(leader.queue))[-1:] == encoded(record)
    assert len(world.calls) == calls + 4


async def test_a_write_that_never_left_is_sent_when_there_is_a_link() -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    leader = await led(world, world.queue())
    world.is_cut = True
    polling = asking(leader.poll())
    await turns(5)
    world.is_cut = False
    assert (await polling).offset == 0


async def test_a_ledger_that_moved_is_found_where_it_is_now() -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    queue = world.queue(index=0)
    leader = await led(world, queue)
    # Broker 1 has not heard of it yet.
    world.brokers[OTHER].ledgers.unlead(0)
    polling = asking(leader.poll())
    await turns(10)
    assert not polling.done()
    world.replicas[0].lose()
    world.lead(0, broker=ME)
    assert (await polling).offset == 0


async def test_a_peer_is_not_asked_more_at_once_than_it_takes() -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    leaders = [await led(world, world.queue(f"g{number}")) for number in range(100)]
    await asyncio.gather(*(leader.poll() for leader in leaders))
    assert 1 < world.open_max <= 32


async def test_a_request_queued_for_an_unresponsive_peer_turns_to_the_one_elected_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = LedgerWorld()
    world.lead(broker=OTHER)
    leaders = [await led(world, world.queue(f"g{number}", index=0)) for number in range(60)]
    silent = asyncio.Event()

    async def wait(*_: object) -> bytes:
        await silent.wait()
        raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "nothing came")

    links = world.ledgers._caller
    monkeypatch.setattr(links, "_ask", wait)
    polls = [asyncio.create_task(leader.poll()) for leader in leaders]
    await turns(10)
    asked = len(world.calls)
    world.depose(0, broker=OTHER)
    world.lead(0, broker=ME)
    await turns(20)
    silent.set()
    results = await asyncio.gather(*polls, return_exceptions=True)
    # Only those whose question was on its way are in doubt; nobody else was sent there.
    assert len(world.calls) == asked
    assert sum(not isinstance(result, BaseException) for result in results) == 60 - 32


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(LedgerRequest("g", bytes(16), 0, ((b"\0", b""),))),
        msgspec.msgpack.encode(LedgerRequest("g", bytes(16), 0, ((b"\x7f\x7f", b"x"),))),
    ],
)
async def test_bytes_of_a_peer_that_are_no_records_do_not_reach_the_log(payload: bytes) -> None:
    world = LedgerWorld()
    world.lead()
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.handle_write(OTHER, payload)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert world.records(0) == world.records(1) == []


async def test_records_of_another_queue_than_the_one_that_is_named_are_refused() -> None:
    world = LedgerWorld()
    world.lead()
    leader = await led(world, world.queue("a", index=0))
    named = world.queue("b", index=0)
    asked = LedgerRequest(
        named.group, named.topic_id, named.partition, tuple(encoded(leader.next_record()))
    )
    with pytest.raises(RefusedError) as refused:
        await world.ledgers.handle_write(OTHER, msgspec.msgpack.encode(asked))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
