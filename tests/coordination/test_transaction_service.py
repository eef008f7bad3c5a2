"""Transactions from the request to the markers: found, stored, told to partitions, taken over."""

import asyncio
from typing import Any

import pytest
from group_world import group_of
from transaction_world import ME, OTHER, TransactionWorld, tp

from moldau.coordination.coordinator_service import java_hash
from moldau.coordination.marker_request import MarkerRequest
from moldau.groups.events import OffsetToCommit
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.net.peers.methods import PeerMethod
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.transactions.results import ProducerResult

NONE = ErrorCode.NONE
A, B = tp("t", 0), tp("t", 1)


def name_in(index: int) -> str:
    return next(name for name in map("x{}".format, range(99)) if java_hash(name) % 2 == index)


X = name_in(0)


async def producer(world: TransactionWorld, name: str = X, **fields: Any) -> ProducerResult:
    result = await world.service.init_producer(name, 60_000, **fields)
    assert result.error is NONE
    return result


async def opened(world: TransactionWorld, *partitions: Any) -> ProducerResult:
    one = await producer(world)
    errors = await world.service.add_partitions(
        X, one.producer_id, one.producer_epoch, partitions or [A, B]
    )
    assert set(errors.values()) == {NONE}
    return one


async def end(
    world: TransactionWorld, one: ProducerResult, *, is_commit: bool = True, version: int = 0
) -> ProducerResult:
    return await world.service.end(
        X, one.producer_id, one.producer_epoch, is_commit=is_commit, client_version=version
    )


async def pass_time(world: TransactionWorld, seconds: float) -> None:
    """The clock goes on, and whoever waits for it looks at it."""
    world.clock.steady += seconds
    world.clock.wall = TimestampMs(world.clock.wall + int(seconds * 1000))
    for coordinator in world.service._coordinators.values():
        coordinator._tick()
    await world.settle()


# ---- one broker


async def test_an_end_reaches_every_partition_and_is_then_complete() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world)
    assert (one.producer_id, one.producer_epoch) == (1000, 0)
    assert (await end(world, one)).error is NONE
    await world.settle()
    for partition in (A, B):
        assert world.replica(partition).markers == [(1000, 0, True, 1, 0)]
    assert world.service.describe(X).state == "CompleteCommit"


async def test_a_client_gets_the_end_before_the_partitions_do() -> None:
    world = await TransactionWorld().ready()
    assert (await end(world, await opened(world))).error is NONE
    assert world.replica(A).markers == []
    await world.settle()
    assert len(world.replica(A).markers) == 1


async def test_markers_are_written_after_the_turn_that_sends_the_response() -> None:
    world = await TransactionWorld().ready()
    await end(world, await opened(world))
    seen: list[int] = []
    # As a connection does with responses.
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(world.replica(A).markers)))
    await world.settle()
    assert (seen, len(world.replica(A).markers)) == ([0], 1)


async def test_markers_of_version_2_say_so_and_bear_the_next_epoch() -> None:
    world = await TransactionWorld().ready()
    one = await producer(world)
    errors = await world.service.admit(X, one.producer_id, one.producer_epoch, [A], adds=True)
    assert errors == {A: NONE}
    ended = await end(world, one, is_commit=False, version=2)
    await world.settle()
    assert ended.producer_epoch == 1
    assert world.replica(A).markers == [(1000, 1, False, 1, 2)]


async def test_a_partition_that_refuses_is_asked_until_it_takes_the_marker() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world)
    world.replica(A).refusal = RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.leaders["t", 1] = BrokerId(-1)
    await end(world, one)
    await world.settle()
    await pass_time(world, 5)
    assert world.service.describe(X).state == "PrepareCommit"
    world.replica(A).refusal = None
    await pass_time(world, 5)
    assert len(world.replica(A).markers) == 1
    assert world.service.describe(X).state == "PrepareCommit"
    del world.leaders["t", 1]
    await pass_time(world, 5)
    assert len(world.replica(B).markers) == 1
    assert world.service.describe(X).state == "CompleteCommit"


async def test_a_partition_where_the_producer_is_further_needs_no_marker() -> None:
    """It gets a later epoch only after the end: to ask again would change nothing, ever."""
    world = await TransactionWorld().ready()
    one = await opened(world)
    world.replica(A).refusal = RefusedError(ErrorCode.INVALID_PRODUCER_EPOCH)
    await end(world, one)
    await world.settle()
    await pass_time(world, 5)
    assert world.service.describe(X).state == "CompleteCommit"


async def test_a_partition_of_a_deleted_topic_needs_no_marker() -> None:
    world = await TransactionWorld().ready()
    world.group_world.create("u")
    one = await opened(world, A, tp("u"))
    world.group_world.delete("u")
    world.fresh_refusal = True
    await end(world, one)
    await world.settle()
    # What this broker does not know may just be new.
    assert world.service.describe(X).state == "PrepareCommit"
    world.fresh_refusal = False
    await pass_time(world, 5)
    assert world.service.describe(X).state == "CompleteCommit"


async def test_partitions_that_do_not_exist_are_refused_and_the_others_with_them() -> None:
    world = await TransactionWorld().ready()
    one = await producer(world)
    bad = tp("t", 99)
    errors = await world.service.add_partitions(
        X, one.producer_id, one.producer_epoch, [A, bad, tp("no")]
    )
    assert errors == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        bad: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        tp("no"): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.service.describe(X).state == "Empty"


async def test_internal_topics_are_entered_into_no_transaction_by_clients() -> None:
    world = await TransactionWorld().ready()
    one = await producer(world)
    internal = tp(TRANSACTION_STATE_TOPIC)
    errors = await world.service.add_partitions(
        X, one.producer_id, one.producer_epoch, [A, internal]
    )
    assert errors == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        internal: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert world.service.describe(X).state == "Empty"


async def test_without_an_available_producer_id_clients_are_asked_to_retry() -> None:
    world = await TransactionWorld().ready()
    world.no_producer_ids = True
    with pytest.raises(RefusedError) as refused:
        await world.service.init_producer(X, 60_000)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_transaction_times_out_by_itself() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world, A)
    await pass_time(world, 61)
    assert world.service.describe(X).state == "CompleteAbort"
    assert world.replica(A).markers == [(1000, 1, False, 1, 0)]
    assert (await end(world, one)).error is ErrorCode.PRODUCER_FENCED


# ---- where it is coordinated


async def test_an_id_is_served_by_the_leader_of_its_partition_only() -> None:
    world = TransactionWorld()
    world.begin(0)
    await world.settle()
    world.leaders[TRANSACTION_STATE_TOPIC, 1] = OTHER
    assert await world.service.find_coordinator(X) == ME
    assert await world.service.find_coordinator(name_in(1)) == OTHER
    with pytest.raises(RefusedError) as refused:
        await world.service.init_producer(name_in(1), 60_000)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert world.service.describe(name_in(1)).error is ErrorCode.NOT_COORDINATOR


async def test_another_coordinator_goes_on_with_a_prepared_end() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world)
    world.replica(A).holds = True
    await end(world, one)
    await world.settle()
    replica = world.stored[0].replica
    replica.lose()
    world.service.unlead(0)
    replica.win()
    world.replica(A).holds = False
    world.begin(0)
    await world.settle()
    assert world.replica(A).markers == [(1000, 0, True, 1, 0), (1000, 0, True, 3, 0)]
    assert world.service.describe(X).state == "CompleteCommit"
    # What the one before asked for is answered at last, and changes nothing.
    world.replica(A).settle()
    await world.settle()
    assert world.service.describe(X).state == "CompleteCommit"


async def test_a_coordinator_that_is_over_asks_for_no_more_markers() -> None:
    world = await TransactionWorld().ready()
    await end(world, await opened(world))
    world.stored[0].replica.lose()
    world.service.unlead(0)
    await world.settle()
    assert world.replica(A).markers == []
    world.stored[0].replica.win()
    world.begin(0)
    await world.settle()
    assert world.replica(A).markers == [(1000, 0, True, 3, 0)]


async def test_a_write_of_unclear_outcome_ends_the_coordinator_and_another_one_loads() -> None:
    world = await TransactionWorld().ready()
    one = await producer(world)
    replica = world.stored[0].replica
    replica.holds = True
    adding = asyncio.ensure_future(
        world.service.add_partitions(X, one.producer_id, one.producer_epoch, [A])
    )
    await world.settle()
    replica.settle(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert await adding == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    replica.holds = False
    replica.commit()
    await world.settle()
    # It was stored after all.
    assert world.service.describe(X).state == "Ongoing"


# ---- several brokers


async def pair() -> tuple[TransactionWorld, TransactionWorld]:
    """The second leads partition 1 of "t" and partition 1 of the state."""
    here, there = TransactionWorld(), TransactionWorld()
    for world in (here, there):
        world.leaders["t", 1] = world.leaders[TRANSACTION_STATE_TOPIC, 1] = OTHER
    here.peers[OTHER] = there
    for place in (("t", 1), (TRANSACTION_STATE_TOPIC, 1)):
        # As it sees itself, the second is ME too.
        del there.leaders[place]
    here.begin(0)
    there.begin(1)
    await here.settle()
    return here, there


async def test_markers_travel_to_the_broker_that_leads_the_partition() -> None:
    here, there = await pair()
    one = await opened(here, A, B, tp("t", 2))
    await end(here, one)
    await here.settle()
    assert here.calls == [(OTHER, PeerMethod.WRITE_MARKERS)]
    assert there.replica(B).markers == [(1000, 0, True, 1, 0)]
    assert not here.replica(B).markers
    assert here.service.describe(X).state == "CompleteCommit"


async def test_a_broker_that_is_cut_off_is_asked_again() -> None:
    here, there = await pair()
    one = await opened(here, A, B)
    here.cut.add(OTHER)
    await end(here, one)
    await here.settle()
    assert here.service.describe(X).state == "PrepareCommit"
    here.cut.clear()
    await pass_time(here, 5)
    assert there.replica(B).markers == [(1000, 0, True, 1, 0)]
    assert here.service.describe(X).state == "CompleteCommit"


async def test_a_delayed_request_is_ignored_once_a_later_one_came() -> None:
    world = await TransactionWorld().ready()
    codes: list[ErrorCode] = []
    first = MarkerRequest(0, 5, 1, 7, 0, True, 0, (A,))
    second = MarkerRequest(0, 5, 2, 7, 0, True, 0, (A,))
    heir = MarkerRequest(0, 6, 1, 7, 0, True, 0, (A,))
    for marking in (second, first, heir, second):
        world.writer.write(marking, A, codes.append)
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert codes == [NONE, fenced, NONE, fenced]
    world.writer.write(first, B, codes.append)
    assert codes[-1] is NONE


async def test_many_ends_for_one_broker_travel_together() -> None:
    here, there = await pair()
    reports: list[tuple[bool, frozenset[Any]]] = []
    for number in range(100):
        marking = MarkerRequest(0, 1, number, number, 0, True, 0, (B,))
        here.sender.send(marking, lambda *report: reports.append(report))
    await here.settle()
    assert len(there.replica(B).markers) == 100
    assert len(here.calls) < 20
    assert reports == [(True, frozenset({B}))] * 100


# ---- leaders ask


async def test_a_leader_asks_the_coordinator_wherever_it_is() -> None:
    here, there = await pair()
    name = name_in(1)
    one = await there.service.init_producer(name, 60_000)
    who = (name, one.producer_id, one.producer_epoch)
    abortable = {A: ErrorCode.TRANSACTION_ABORTABLE}
    assert await here.service.admit(*who, [A], adds=False) == abortable
    assert await here.service.admit(*who, [A], adds=True) == {A: NONE}
    assert await here.service.admit(*who, [A], adds=False) == {A: NONE}
    assert set(here.calls) == {(OTHER, PeerMethod.ADMIT_TO_TRANSACTION)}
    here.cut.add(OTHER)
    errors = await here.service.admit(*who, [A, B], adds=False)
    assert errors == dict.fromkeys((A, B), ErrorCode.NETWORK_EXCEPTION)


async def test_a_coordinator_that_was_deposed_admits_nothing() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world, A)
    world.stored[0].replica.is_deposed = True
    # Another one may have entered B since.
    for partition in (A, B):
        who = (X, one.producer_id, one.producer_epoch)
        errors = await world.service.admit(*who, [partition], adds=False)
        assert errors == {partition: ErrorCode.NOT_COORDINATOR}


async def test_only_a_coordinator_that_leads_alone_admits_without_a_majority() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world, A)
    who = (X, one.producer_id, one.producer_epoch)
    assert not world.service.is_admitted(*who, A)
    world.stored[0].replica.group.leads_alone = True
    assert world.service.is_admitted(*who, A)
    assert not world.service.is_admitted(*who, B)
    world.stored[0].replica.is_ready = False
    assert not world.service.is_admitted(*who, A)


async def test_a_coordinator_that_was_deposed_calls_no_transaction_over() -> None:
    world = await TransactionWorld().ready()
    one = await opened(world, A)
    await end(world, one)
    await world.settle()
    ended = (X, one.producer_id, ProducerEpoch(one.producer_epoch + 1))
    assert (await world.service.end(*ended, is_commit=True)).error is not NONE
    world.stored[0].replica.is_deposed = True
    with pytest.raises(RefusedError) as refused:
        await world.service.end(*ended, is_commit=True)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(RefusedError) as refused:
        await world.service.add_partitions(*ended, [A])
    assert refused.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_fenced_producer_is_not_admitted() -> None:
    world = await with_groups()
    one = await opened(world, A)
    await end(world, one)
    await world.settle()
    await producer(world)
    errors = await world.service.admit(X, one.producer_id, one.producer_epoch, [A], adds=True)
    assert errors == {A: ErrorCode.PRODUCER_FENCED}
    # From the coordinator of a group a client expects another code for it.
    assert await commit_offset(world, one, 5) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_offsets_wait_for_a_coordinator_of_the_transaction_that_is_not_there() -> None:
    world = await with_groups()
    one = await producer(world)
    world.leaders[TRANSACTION_STATE_TOPIC, 0] = BrokerId(-1)
    assert await commit_offset(world, one, 5, adds=True) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_an_administrator_ends_what_no_coordinator_knows() -> None:
    world = await TransactionWorld().ready()
    replica = world.replica(A)
    who = (ProducerId(7), ProducerEpoch(3))
    assert await world.service.abort_hanging(A, *who) is NONE
    assert replica.markers == []
    batch = build_batch(
        [Record(Offset(0), TimestampMs(1), None, b"hangs", [])],
        producer_id=who[0],
        producer_epoch=who[1],
        base_sequence=0,
        transactional=True,
    )
    replica.producers.appended(read_header(batch), TimestampMs(1))
    # An epoch that nobody has would lock its owner out, and its coordinator.
    later = ProducerEpoch(4)
    code = await world.service.abort_hanging(A, who[0], later)
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.service.abort_hanging(A, *who) is NONE
    assert replica.markers == [(7, 3, False, 0, 0)]
    world.leaders["t", 1] = OTHER
    assert await world.service.abort_hanging(B, *who) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# ---- offsets of groups


async def commit_offset(
    world: TransactionWorld, one: ProducerResult, offset: int, *, adds: bool = False
) -> ErrorCode:
    (error,) = await world.service.commit_offsets(
        X,
        group_of(0),
        one.producer_id,
        one.producer_epoch,
        [OffsetToCommit(partition=A, offset=Offset(offset))],
        adds=adds,
    )
    return error


async def with_groups(**config: Any) -> TransactionWorld:
    world = await TransactionWorld(**config).ready()
    world.group_world.lead(0)
    await world.group_world.loaded()
    return world


@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_of_a_group_count_when_the_transaction_is_committed(is_commit: bool) -> None:
    world = await with_groups()
    one = await producer(world)
    assert await commit_offset(world, one, 5) is ErrorCode.TRANSACTION_ABORTABLE
    who = (X, one.producer_id, one.producer_epoch)
    assert await world.service.add_offsets(*who, group_of(0)) is NONE
    assert await commit_offset(world, one, 5) is NONE
    groups = world.group_world
    assert groups.committed(group_of(0)) == {}
    assert groups.groups.known_offsets(group_of(0)).unstable == {A}
    await end(world, one, is_commit=is_commit)
    await world.settle()
    assert groups.committed(group_of(0)) == ({"t": 5} if is_commit else {})
    assert world.service.describe(X).state == f"Complete{'Commit' if is_commit else 'Abort'}"


async def test_a_client_of_version_2_commits_offsets_without_entering_them_first() -> None:
    world = await with_groups()
    one = await producer(world)
    assert await commit_offset(world, one, 5, adds=True) is NONE
    assert world.service.describe(X).partitions == {tp(CONSUMER_OFFSETS_TOPIC, 0)}
    await end(world, one, version=2)
    await world.settle()
    assert world.group_world.committed(group_of(0)) == {"t": 5}


@pytest.mark.parametrize("is_commit", [True, False])
async def test_pending_offsets_outlive_the_groups_coordinator(is_commit: bool) -> None:
    world = await with_groups()
    groups = world.group_world
    one = await producer(world)
    assert await commit_offset(world, one, 5, adds=True) is NONE
    groups.depose(0)
    await end(world, one, is_commit=is_commit)
    await world.settle()
    assert world.service.describe(X).state.startswith("Prepare")
    groups.hosted[0].replica.win()
    groups.lead(0)
    await groups.loaded()
    assert groups.groups.known_offsets(group_of(0)).unstable == {A}
    await pass_time(world, 5)
    assert groups.committed(group_of(0)) == ({"t": 5} if is_commit else {})
    # And whoever loads the partition after that comes to the same.
    groups.depose(0)
    groups.hosted[0].replica.win()
    groups.lead(0)
    await groups.loaded()
    assert groups.committed(group_of(0)) == ({"t": 5} if is_commit else {})


async def test_an_end_waits_until_the_groups_are_loaded() -> None:
    world = await with_groups()
    one = await producer(world)
    assert await commit_offset(world, one, 5, adds=True) is NONE
    groups = world.group_world
    groups.depose(0)
    groups.hosted[0].replica.win()
    groups.lead(0)
    codes: list[ErrorCode] = []
    place = tp(CONSUMER_OFFSETS_TOPIC, 0)
    world.writer.write(
        MarkerRequest(0, 9, 1, one.producer_id, 0, True, 0, (place,)), place, codes.append
    )
    assert codes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_offsets_that_come_after_the_end_are_refused() -> None:
    world = await with_groups()
    one = await producer(world)
    assert await commit_offset(world, one, 5, adds=True) is NONE
    ending: list[asyncio.Task[Any]] = []
    honest = world.service.admit

    async def admit(*args: Any, **fields: Any) -> Any:
        errors = await honest(*args, **fields)
        # Between the coordinator's word and the write, the transaction ends.
        ending.append(asyncio.ensure_future(end(world, one)))
        await world.settle()
        return errors

    world.service.admit = admit  # type: ignore[method-assign]
    assert await commit_offset(world, one, 6) is ErrorCode.INVALID_TXN_STATE
    assert world.group_world.committed(group_of(0)) == {"t": 5}
