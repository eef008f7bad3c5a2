"""A table that has a version is written once, whoever dies between which two steps."""

from typing import Any

import pytest
from effort import seeds
from sink_world import FATES, QUERY, Call, Chances, ModelPort, Process, World

from moldau.client.errors import ClientError
from moldau.spark.sink import protocol
from moldau.spark.sink.protocol import NO_CLAIM, Begin, SupersededError, TaskAttempt, TaskResult

pytestmark = pytest.mark.inprocess

QUIET = Chances()
WILD = Chances(die=0.03, speculate=0.1, outlive=0.3, compact=0.02)


def lived_through(seed: int, chances: Chances, *, is_alone: bool = False) -> World:
    world = World(seed, chances, is_versioned=True, is_alone=is_alone)
    world.run()
    world.check()
    return world


def test_a_stream_that_writes_tables_needs_no_more_names_than_it_has_tasks() -> None:
    world = World(1, QUIET, batches=12, is_versioned=True)
    world.run()
    world.check()
    assert len(world.brokers.names) == world.parts


CALLS_WITHOUT_FAULTS = len(lived_through(7, QUIET).calls)


@pytest.mark.parametrize("how", FATES)
@pytest.mark.parametrize("number", range(CALLS_WITHOUT_FAULTS))
def test_each_row_is_there_once_at_whichever_call_a_process_dies(number: int, how: str) -> None:
    for outlive, is_alone in ((0.0, True), (1.0, False)):
        chances = Chances(die_at=number, die_how=how, outlive=outlive)
        lived_through(7, chances, is_alone=is_alone)


@pytest.mark.parametrize("first", seeds(75)[::25])
def test_many_faults_in_any_order_leave_each_row_once(first: int) -> None:
    for seed in range(first, first + 25):
        lived_through(seed, WILD, is_alone=seed % 2 == 0)


def survives() -> bool:
    for seed in range(400):
        try:
            lived_through(seed, WILD)
        except (AssertionError, ClientError):
            return False
    return True


def aborts_what_was_told(port: Any, done: list[TaskResult]) -> None:
    port.abort([each.transaction.name for each in done if each.transaction is not None])


def skips_what_was_claimed(port: Any, done: list[TaskResult], version: int) -> None:
    ledger = port.read(QUERY)
    if ledger.owner is not None and ledger.owner.run == done[0].task.run:
        protocol.commit_batch(port, done, version)


MUTANTS = {
    "aborts what may have been decided": ("abort_version", aborts_what_was_told),
    "takes what another run does for done": ("commit_version", skips_what_was_claimed),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, *MUTANTS[name])
    assert not survives()


# -- single rules


@pytest.fixture
def world() -> World:
    return World(0, QUIET, is_versioned=True)


@pytest.fixture
def port(world: World) -> ModelPort:
    process: Any = Process.__new__(Process)
    process.name, process.is_dead = "test", False
    process._thread = None
    return ModelPort(world.brokers, Call(world, process))


def written(port: ModelPort, run: str, version: int, attempt: int = 0) -> TaskResult:
    def write(begin: Begin) -> bool:
        port.write(begin(("out", 0)), (version, 0, 0))
        return True

    task = TaskAttempt(
        query=QUERY, run=run, batch=version, number=0, attempt=attempt, is_versioned=True
    )
    return protocol.run_task(port, task, write)


def commit(port: ModelPort, done: TaskResult, version: int) -> None:
    protocol.commit_version(port, [done], version)


def test_a_version_that_was_written_is_passed_over_and_so_are_lower_ones(
    world: World, port: ModelPort
) -> None:
    commit(port, written(port, "a", 5), 5)
    for version in (5, 4, 0):
        again = written(port, "b", version)
        assert (again.transaction, again.claim) == (None, NO_CLAIM)
        commit(port, again, version)
    assert world.brokers.committed == [(5, 0, 0)]
    # Who passes over takes nothing from whoever writes on.
    owner = port.read(QUERY).owner
    assert owner is not None
    assert owner.run == "a"


def test_versions_may_leave_numbers_out(world: World, port: ModelPort) -> None:
    for version in (3, 70):
        commit(port, written(port, f"run{version}", version), version)
    assert world.brokers.committed == [(3, 0, 0), (70, 0, 0)]


def test_a_decided_version_is_finished_by_the_next_writer(world: World, port: ModelPort) -> None:
    done = written(port, "a", 1)
    protocol._decide(port, port.read(QUERY), [done], 1)
    assert world.brokers.committed == []
    again = written(port, "b", 1)
    commit(port, again, 1)
    assert again.transaction is None
    assert world.brokers.committed == [(1, 0, 0)]
    assert world.open_names() == []


def test_an_undecided_version_is_aborted_and_written_again(world: World, port: ModelPort) -> None:
    written(port, "a", 1)
    commit(port, written(port, "b", 1), 1)
    assert world.brokers.committed == [(1, 0, 0)]
    assert world.open_names() == []


def test_of_two_that_write_at_once_the_younger_goes_on(world: World, port: ModelPort) -> None:
    older = written(port, "a", 1)
    younger = written(port, "b", 1, attempt=1)
    with pytest.raises(SupersededError, match="taken over"):
        commit(port, older, 1)
    # What it does then must not get into the way of the other.
    protocol.abort_version(port, [older])
    commit(port, younger, 1)
    with pytest.raises(SupersededError):
        commit(port, older, 1)
    assert world.brokers.committed == [(1, 0, 0)]
    assert world.open_names() == []


def test_a_run_whose_write_failed_may_write_again(world: World, port: ModelPort) -> None:
    protocol.abort_version(port, [written(port, "a", 1)])
    assert world.open_names() == []
    commit(port, written(port, "a", 1, attempt=1), 1)
    assert world.brokers.committed == [(1, 0, 0)]


def test_a_version_that_a_younger_one_overtook_in_the_same_run_is_an_error(
    world: World, port: ModelPort
) -> None:
    late = written(port, "a", 1)
    commit(port, written(port, "a", 2, attempt=1), 2)
    with pytest.raises(SupersededError):
        commit(port, late, 1)


def test_the_failure_of_a_commit_after_its_decision_takes_nothing_back(
    world: World, port: ModelPort
) -> None:
    done = written(port, "a", 1)
    protocol._decide(port, port.read(QUERY), [done], 1)
    protocol.abort_version(port, [done])
    assert world.brokers.committed == [(1, 0, 0)]


def test_names_of_applications_do_not_run_into_each_other() -> None:
    query = protocol.query_of_app("a")
    for other in ("a-1", "a/1", "a-1-0-5", "a/claim", "a_1", "a%2D1"):
        theirs = protocol.query_of_app(other)
        assert theirs != query
        assert protocol.app_of(theirs) == other
        assert "-" not in theirs
        assert "/" not in theirs
        assert protocol.claim_of(f"{protocol.prefix_of(theirs)}7-0-0", query) is None
        assert protocol.claim_of(f"{protocol.prefix_of(theirs)}7-0-0", theirs) == 7
