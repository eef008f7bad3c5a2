"""Coordinators follow leadership: loaded in pieces, ended with their epoch, loaded anew."""

import asyncio
from typing import Any

import pytest
from group_world import OffsetsReplica, World, group_of, turns

from moldau.coordination import coordinator_host as coordinators_module
from moldau.coordination.coordinator_host import LOAD_RECORDS_PER_TURN
from moldau.coordination.coordinator_service import java_hash
from moldau.groups.events import NO_MEMBER_ID
from moldau.groups.results import JoinResult
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records

G = group_of(0)


def started(work: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


async def result_of(task: asyncio.Task[Any]) -> Any:
    """What it ended with, a code if it was refused; it must not need anything more to end."""
    await turns(5)
    assert task.done(), "nobody has answered it"
    try:
        return task.result()
    except RefusedError as error:
        return error.code


def repeat_log(replica: OffsetsReplica, times: int) -> None:
    """What is stored, so often again, each time as one batch."""
    log = replica.log
    records = [r for batch in log.batches(Offset(0)) for r in read_records(batch)]
    for _ in range(times):
        again = [Record(Offset(0), r.timestamp, r.key, r.value, []) for r in records]
        data = build_batch(again, base_offset=log.end_offset, leader_epoch=replica.epoch)
        log.append(data, [read_header(data)])
    replica.commit()


async def stored(world: World, replica: OffsetsReplica, groups: int, repeats: int) -> None:
    """Many records in the log, and nobody leads."""
    world.lead()
    await world.loaded()
    for number in range(groups):
        assert await world.commit(group_of(0, number=number), number) is ErrorCode.NONE
    world.depose()
    repeat_log(replica, repeats)
    replica.win()


# ---- loading


async def test_a_long_log_is_loaded_in_pieces_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinators_module, "_LOAD_BYTES_PER_READ", 10_000)
    world = World()
    replica = world.host()
    await stored(world, replica, groups=50, repeats=99)
    records = 50 * 100
    world.lead()
    loop_turns = 0
    while world.committed(G) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        loop_turns += 1
        assert loop_turns < records
        await asyncio.sleep(0)
    assert loop_turns >= records // LOAD_RECORDS_PER_TURN
    for number in range(50):
        assert world.committed(group_of(0, number=number)) == {"t": number}


async def test_of_several_that_load_one_has_its_turn_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    turn = 0
    reads: list[tuple[int, int]] = []
    for index in (0, 1):
        replica = world.lead(index)
        await world.loaded()
        assert await world.commit(group_of(index), 7) is ErrorCode.NONE
        world.depose(index)
        repeat_log(replica, 5 * LOAD_RECORDS_PER_TURN)
        replica.win()

    def noting(batch: bytes) -> Any:
        reads.append((turn, int(group_of(1).encode() in bytes(batch))))
        return read_records(batch)

    monkeypatch.setattr(coordinators_module, "read_records", noting)
    world.lead(0)
    world.lead(1)
    while world.groups.list_groups((), ())[0] is not ErrorCode.NONE:
        turn += 1
        assert turn < 1000
        await asyncio.sleep(0)
    assert len(reads) == 2 * (5 * LOAD_RECORDS_PER_TURN + 1)
    for one in range(turn):
        assert sum(at == one for at, _ in reads) <= LOAD_RECORDS_PER_TURN
    # And neither waits until the other is done.
    assert {number for _, number in reads[: 3 * LOAD_RECORDS_PER_TURN]} == {0, 1}


async def test_what_was_deleted_in_the_log_is_not_there_when_it_is_loaded() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    names = [group_of(0, number=number) for number in range(3)]
    for name in names:
        assert await world.commit(name, 1) is ErrorCode.NONE
    assert set((await world.groups.delete_groups(names)).values()) == {ErrorCode.NONE}
    assert await world.commit(names[1], 2) is ErrorCode.NONE
    world.depose()
    replica.win()
    world.lead()
    await world.loaded()
    assert [world.committed(name) for name in names] == [{}, {"t": 2}, {}]
    assert [group.group_id for group in world.groups.list_groups((), ())[1]] == [names[1]]


async def test_requests_that_come_while_it_loads_are_asked_to_wait() -> None:
    world = World()
    replica = world.host()
    await stored(world, replica, groups=1, repeats=3 * LOAD_RECORDS_PER_TURN)
    world.lead()
    await turns(2)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.committed(G) is loading
    assert await world.commit(G, 5) is loading
    assert (await world.join(G)).error is loading
    assert world.groups.describe(G).error is loading
    assert world.groups.list_groups((), ()) == (loading, [])
    assert await world.groups.delete_groups([G]) == {G: loading}
    # The session begins anew when it is loaded: no reason to join again.
    member = JoinResult(error=ErrorCode.NONE, member_id="m", generation=1)
    assert (await world.heartbeat(G, member)).error is ErrorCode.NONE
    await world.loaded()
    assert world.committed(G) == {"t": 0}
    assert await world.commit(G, 5) is ErrorCode.NONE


async def test_leadership_lost_while_it_loads_ends_the_loading() -> None:
    world = World()
    replica = world.host()
    await stored(world, replica, groups=1, repeats=3 * LOAD_RECORDS_PER_TURN)
    world.lead()
    await turns(2)
    world.depose()
    reads = 0
    batches = replica.log.batches

    def counting(offset: Offset) -> Any:
        nonlocal reads
        reads += 1
        return batches(offset)

    replica.log.batches = counting  # type: ignore[method-assign]
    await turns(20)
    assert (world.committed(G), reads) == (ErrorCode.NOT_COORDINATOR, 0)
    assert world.defects == []


async def test_an_epoch_that_ends_unnoticed_while_it_loads_is_noticed_there() -> None:
    world = World()
    replica = world.host()
    await stored(world, replica, groups=1, repeats=3 * LOAD_RECORDS_PER_TURN)
    world.lead()
    await turns(2)
    replica.epoch = Epoch(replica.epoch + 1)
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    # It leads in the next epoch as well, and that one is loaded from the beginning.
    await world.loaded()
    assert world.committed(G) == {"t": 0}
    assert await world.commit(G, 1) is ErrorCode.NONE


async def test_what_is_appended_and_not_committed_is_waited_for_before_it_loads() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    replica.holds = True
    commit = started(world.commit(G, 7))
    await turns()
    # The outcome is unknown, and yet this broker leads on in the same epoch.
    replica.settle(ErrorCode.REQUEST_TIMED_OUT)
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    assert await result_of(commit) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await turns(20)
    assert world.committed(G) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    replica.settle(ErrorCode.REQUEST_TIMED_OUT)
    await turns(20)
    assert world.committed(G) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    replica.holds = False
    replica.commit()
    await world.loaded()
    assert world.committed(G) == {"t": 7}


@pytest.mark.parametrize("damage", ["record", "batch"])
async def test_damage_takes_the_partition_offline_and_its_groups_are_refused(damage: str) -> None:
    world = World()
    replica = world.host()
    key = b"\x00\x01" if damage == "record" else None
    record = Record(Offset(0), TimestampMs(0), key, b"nothing that was ever stored", [])
    data = bytearray(build_batch([record], leader_epoch=replica.epoch))
    if damage == "batch":
        data[-1] ^= 1
    replica.log.append(data, [read_header(data)])
    replica.commit()
    world.lead()
    await turns(10)
    assert (world.offline, world.defects) == ([0], [])
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR


async def test_an_internal_error_while_it_loads_is_reported_and_the_groups_are_refused() -> None:
    world = World()
    replica = world.host()
    defect = ZeroDivisionError()

    def fail(offset: Offset) -> Any:
        raise defect

    await stored(world, replica, groups=1, repeats=1)
    replica.log.batches = fail  # type: ignore[method-assign]
    world.lead()
    await turns(10)
    assert (world.defects, world.offline) == ([defect], [])
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR


# ---- leadership lost


async def test_a_rebalance_that_is_under_way_ends_with_leadership() -> None:
    world = World()
    world.lead()
    await world.loaded()
    first = await world.join(G)
    assert (await world.sync(G, first, b"all")).assignment == b"all"
    waiting = started(world.join(G))
    await turns()
    assert not waiting.done()
    world.depose()
    assert (await result_of(waiting)).error is ErrorCode.NOT_COORDINATOR
    assert await result_of(started(world.heartbeat(G, first))) is ErrorCode.NOT_COORDINATOR
    assert world.groups.describe(G).error is ErrorCode.NOT_COORDINATOR
    assert world.groups.list_groups((), ()) == (ErrorCode.NONE, [])
    assert world.groups._coordinators == {}


async def test_a_leader_that_steps_down_within_its_epoch_serves_no_request() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(G, 1) is ErrorCode.NONE
    replica.is_ready = False
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    assert await world.commit(G, 2) is ErrorCode.NOT_COORDINATOR
    assert world.groups.list_groups((), ()) == (ErrorCode.NONE, [])


async def test_a_partition_that_is_no_longer_here_is_not_served() -> None:
    world = World()
    world.lead()
    await world.loaded()
    del world.hosted[0]
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR


async def test_a_sync_whose_assignment_was_proposed_is_answered_when_leadership_ends() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    joined = await world.join(G)
    replica.holds = True
    sync = started(world.sync(G, joined, b"all"))
    await turns()
    assert not sync.done()
    world.depose()
    assert (await result_of(sync)).error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("survives", [True, False])
async def test_a_commit_of_unknown_outcome_is_as_the_log_says_once_it_is_loaded_again(
    survives: bool,
) -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(G, 1) is ErrorCode.NONE
    replica.holds = True
    commits = [started(world.commit(G, offset)) for offset in (2, 3)]
    await turns()
    world.depose()
    for commit in commits:
        assert await result_of(commit) is ErrorCode.NOT_COORDINATOR
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    if not survives:
        replica.cut()
    replica.holds = False
    replica.win()
    world.lead()
    await world.loaded()
    # The second commit waited for the first and was never proposed.
    assert world.committed(G) == {"t": 2 if survives else 1}
    assert await world.commit(G, 4) is ErrorCode.NONE
    assert world.committed(G) == {"t": 4}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_lost_leadership_that_only_the_write_reports_ends_the_coordinator(
    code: ErrorCode, told: ErrorCode
) -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    other = group_of(0, number=1)
    joined = await world.join(other)
    assert (await world.sync(other, joined, b"all")).error is ErrorCode.NONE
    waiting = started(world.join(other))
    replica.holds = True
    commit = started(world.commit(G, 1))
    await turns()
    assert not waiting.done()
    replica.is_ready = False
    replica.settle(code)
    assert await result_of(commit) is told
    assert (await result_of(waiting)).error is told
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    await turns(20)
    assert world.groups._coordinators == {}
    # The news of it comes later, and changes nothing.
    world.groups.unlead(0)
    replica.holds = False
    replica.win()
    world.lead()
    await world.loaded()
    assert world.committed(G) == {"t": 1}


async def test_who_leads_again_before_the_end_is_noticed_is_not_disturbed_by_it() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    replica.holds = True
    commit = started(world.commit(G, 1))
    await turns()
    replica.lose()
    replica.holds = False
    replica.win()
    world.lead()
    coordinator = world.groups._coordinators[0]
    assert await result_of(commit) is ErrorCode.NOT_COORDINATOR
    await world.loaded()
    assert world.groups._coordinators[0] is coordinator
    assert world.committed(G) == {"t": 1}


async def test_to_lead_in_a_later_epoch_ends_what_the_earlier_one_left() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    joined = await world.join(G)
    assert (await world.sync(G, joined, b"all")).error is ErrorCode.NONE
    waiting = started(world.join(G))
    await turns()
    replica.epoch = Epoch(replica.epoch + 2)
    world.lead()
    assert (await result_of(waiting)).error is ErrorCode.NOT_COORDINATOR
    await world.loaded()
    assert await world.commit(group_of(0, number=1), 1) is ErrorCode.NONE
    assert replica.epochs_written[-1] == replica.epoch


async def test_no_request_waits_forever_even_if_the_coordinator_forgets_to_answer() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(G, 1) is ErrorCode.NONE
    replica.holds = True
    commit = started(world.commit(G, 2))
    deletion = started(world.groups.delete_groups([G]))
    await turns()
    coordinator: Any = world.groups._coordinators[0]
    coordinator.state.close = lambda now, error: []
    world.depose()
    assert await result_of(commit) is ErrorCode.NOT_COORDINATOR
    assert await result_of(deletion) == {G: ErrorCode.NOT_COORDINATOR}


async def test_what_a_coordinator_was_still_doing_ends_with_it() -> None:
    world = World()
    never = asyncio.Event()

    async def fresh_image() -> Any:
        await never.wait()

    replica = world.lead()
    await world.loaded()
    assert await world.commit(G, 1) is ErrorCode.NONE
    world.depose()
    world.delete("t")
    world.groups = world.make_groups(fresh_image=fresh_image)
    replica.win()
    world.lead()
    await world.loaded()
    doing = world.groups._coordinators[0].loading
    assert doing is not None
    assert not doing.done()
    world.depose()
    await turns()
    assert doing.cancelled()


async def test_nothing_is_written_in_another_epoch_than_that_which_was_loaded() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    joined = await world.join(G)
    first = await result_of(started(world.sync(G, joined, b"all")))
    assert first.error is ErrorCode.NONE
    written = list(replica.epochs_written)
    coordinator = world.groups._coordinators[0]
    # Lost and won again, and nobody has told yet.
    replica.epoch = Epoch(replica.epoch + 2)
    assert await world.commit(G, 1) is ErrorCode.NOT_COORDINATOR
    # Nor does its own time make it write: the session of the only member ends.
    world.clock.steady += 11.0
    coordinator._tick()
    await turns(5)
    assert replica.epochs_written == written


async def test_members_go_on_with_the_next_leader_and_need_not_join_again() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    joined = await world.join(G)
    assert (await world.sync(G, joined, b"all")).error is ErrorCode.NONE
    world.depose()
    replica.win()
    world.lead()
    await world.loaded()
    assert (await world.heartbeat(G, joined)).error is ErrorCode.NONE
    assert (await world.sync(G, joined)).assignment == b"all"


async def test_timers_of_an_ended_coordinator_stand_still() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    joined = await world.join(G)
    assert (await world.sync(G, joined, b"all")).error is ErrorCode.NONE
    coordinator = world.groups._coordinators[0]
    assert coordinator._timer is not None
    world.depose()
    assert coordinator._timer is None
    end = replica.log.end_offset
    world.clock.steady += 3600.0
    await turns(5)
    assert replica.log.end_offset == end


# ---- writes that were refused


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        # A leader that hands over refuses writes; if nothing comes of it, it goes on.
        (RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_COORDINATOR),
        (RefusedError(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (DiskFullError("no room"), ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_write_that_is_refused_is_reported_and_the_coordinator_continues(
    refusal: Any, told: ErrorCode
) -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    assert await world.commit(G, 1) is ErrorCode.NONE
    waiting = await world.join(group_of(0, number=1))
    replica.refusal = refusal
    assert await world.commit(G, 2) is told
    assert world.committed(G) == {"t": 1}
    replica.refusal = None
    assert await world.commit(G, 3) is ErrorCode.NONE
    assert world.committed(G) == {"t": 3}
    assert (await world.heartbeat(group_of(0, number=1), waiting)).error is ErrorCode.NONE


async def test_a_log_line_has_the_beginning_of_a_long_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients choose the names of groups."""
    world = World()
    replica = world.lead()
    await world.loaded()
    replica.refusal = DiskFullError("no room")
    names = ("g" * 20_000 + str(number) for number in range(10))
    name = next(name for name in names if java_hash(name) % 2 == 0)
    assert await world.commit(name, 1) is ErrorCode.NOT_COORDINATOR
    (line,) = (one for one in caplog.messages if "storing group" in one)
    assert "no room" in line
    assert len(line) < 500


# ---- stop


async def test_a_stop_answers_who_waits_and_lets_what_is_written_end() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    first = await world.join(G)
    assert (await world.sync(G, first, b"all")).error is ErrorCode.NONE
    joining = started(world.join(G, NO_MEMBER_ID))
    replica.holds = True
    commit = started(world.commit(group_of(0, number=1), 5))
    await turns()
    world.groups.reject_waiting()
    await turns()
    assert not commit.done()
    replica.commit()
    assert await result_of(commit) is ErrorCode.NONE
    world.groups.reject_waiting()
    assert (await result_of(joining)).error is ErrorCode.NOT_COORDINATOR
    world.groups.stop()


async def test_a_stop_ends_a_loading_and_nothing_is_loaded_any_more() -> None:
    world = World()
    replica = world.host()
    await stored(world, replica, groups=1, repeats=3 * LOAD_RECORDS_PER_TURN)
    world.lead()
    await turns(2)
    world.groups.reject_waiting()
    await turns(20)
    assert world.committed(G) is ErrorCode.NOT_COORDINATOR
    world.lead(1)
    await turns(5)
    assert world.committed(group_of(1)) is ErrorCode.NOT_COORDINATOR
    world.groups.stop()


async def test_after_a_stop_nothing_more_is_written() -> None:
    world = World()
    replica = world.lead()
    await world.loaded()
    replica.holds = True
    commits = [started(world.commit(G, offset)) for offset in (1, 2)]
    await turns()
    end = replica.log.end_offset
    world.groups.stop()
    replica.commit()
    await turns()
    assert replica.log.end_offset == end
    assert all(commit.cancelled() for commit in commits)
