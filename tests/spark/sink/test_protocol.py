"""Each row exactly once, whoever dies between which two steps, in whatever order of attempts."""

from collections.abc import Callable
from typing import Any

import pytest
from effort import seeds
from sink_world import FATES, QUERY, Call, Chances, ModelPort, Process, World

from moldau.client.errors import ClientError
from moldau.spark.sink import protocol
from moldau.spark.sink.decisions import Ledger
from moldau.spark.sink.protocol import (
    Begin,
    LostTransactionError,
    SupersededError,
    TaskAttempt,
    TaskResult,
)

pytestmark = pytest.mark.inprocess

QUIET = Chances()
WILD = Chances(die=0.03, speculate=0.1, outlive=0.3, compact=0.02)


def lived_through(seed: int, chances: Chances) -> World:
    world = World(seed, chances)
    world.run()
    world.check()
    return world


def test_without_faults_each_row_is_written_once_and_nothing_stays_open() -> None:
    world = lived_through(1, QUIET)
    assert world.open_names() == []


def test_a_query_needs_no_more_names_than_it_has_tasks() -> None:
    world = World(1, QUIET, batches=12)
    world.run()
    world.check()
    assert len(world.brokers.names) == world.parts


def test_the_log_of_decisions_stays_short_under_compaction() -> None:
    world = World(1, QUIET, batches=40)
    world.run()
    world.brokers.compact(world.brokers.end)
    assert len(world.brokers.log) <= 6


CALLS_WITHOUT_FAULTS = len(lived_through(7, QUIET).calls)


@pytest.mark.parametrize("how", FATES)
@pytest.mark.parametrize("number", range(CALLS_WITHOUT_FAULTS))
def test_each_row_is_there_once_at_whichever_call_a_process_dies(number: int, how: str) -> None:
    for outlive in (0.0, 1.0):
        lived_through(7, Chances(die_at=number, die_how=how, outlive=outlive))


@pytest.mark.parametrize("first", seeds(100)[::25])
def test_many_faults_in_any_order_leave_each_row_once(first: int) -> None:
    for seed in range(first, first + 25):
        lived_through(seed, WILD)


def test_what_losers_of_a_race_left_open_is_aborted_by_the_next_commit() -> None:
    world = lived_through(3, Chances(speculate=0.5))
    # All attempts that were too late are through by now; one more batch cleans up after them.
    world.batches += 1
    world.run()
    world.check()
    assert world.open_names() == []


# -- the model sees what it is there to see


def survives(chances: Chances = WILD) -> bool:
    for seed in range(400):
        try:
            lived_through(seed, chances)
        except (AssertionError, LostTransactionError):
            return False
    return True


def ends_without_a_decision(port: Any, done: list[TaskResult], batch: int) -> None:
    port.commit([each.transaction for each in done if each.transaction is not None])


def aborts_at_once(port: Any, done: list[TaskResult], batch: int) -> None:
    port.abort([each.transaction.name for each in done if each.transaction is not None])


def sweeps_all(port: Any, ledger: Ledger, *, claim_max: int) -> None:
    open_ids = port.open_ids(protocol.prefix_of(QUERY))
    port.abort([name for name in open_ids if name not in ledger.decided_names])


def claims_nothing(port: Any, query: str, run: str, **_: bool) -> tuple[Ledger, int]:
    return port.read(query), 1


def begins_with_one_name(port: Any, ledger: Ledger, claim: int, task: TaskAttempt, key: Any) -> Any:
    return port.begin(f"{protocol.prefix_of(QUERY)}{claim}-{task.number}")


def goes_on_without_looking(
    port: Any, ledger: Ledger, claim: int, task: TaskAttempt, key: Any
) -> Any:
    before = protocol.last_of(ledger, claim).get(task.number)
    follower = None if before is None else port.next_transaction(before, task.attempt)
    return follower or port.begin(f"{protocol.prefix_of(QUERY)}{claim}-{task.attempt}")


def deletes_one_too_many(ledger: Ledger) -> list[str]:
    return list(ledger.keys)


def counts_always(ledger: Ledger, entry: Any) -> bool:
    return ledger.decision is None or entry.batch > ledger.decision.batch


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no decision": (protocol, "commit_batch", ends_without_a_decision),
    "aborts although a decision may be on its way": (protocol, "abort_batch", aborts_at_once),
    "aborts what newer runs write": (protocol, "sweep", sweeps_all),
    "no claim": (protocol, "claimed", claims_nothing),
    "one name for all attempts": (protocol, "_begin", begins_with_one_name),
    "two attempts in one transaction": (protocol, "_begin", goes_on_without_looking),
    "deletes what is still needed": (Ledger, "deletable", deletes_one_too_many),
    "decisions of former owners count": (Ledger, "_is_valid", counts_always),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, mutant = MUTANTS[name]
    monkeypatch.setattr(where, what, mutant)
    assert not survives()


# -- single rules


def port_of(world: World) -> ModelPort:
    process: Any = Process.__new__(Process)
    process.name, process.is_dead = "test", False
    process._thread = None
    return ModelPort(world.brokers, Call(world, process))


def task(run: str, batch: int, number: int = 0, attempt: int = 0) -> TaskAttempt:
    return TaskAttempt(query=QUERY, run=run, batch=batch, number=number, attempt=attempt)


def written(port: ModelPort, run: str, batch: int, attempt: int = 0) -> TaskResult:
    def write(begin: Begin) -> bool:
        port.write(begin(("out", 0)), (batch, 0, 0))
        return True

    return protocol.run_task(port, task(run, batch, attempt=attempt), write)


def test_a_run_that_was_taken_over_may_not_write_or_decide() -> None:
    port = port_of(World(0, QUIET))
    old = written(port, "a", 0)
    written(port, "b", 0)
    with pytest.raises(SupersededError, match="another run"):
        protocol.commit_batch(port, [old], 0)
    with pytest.raises(SupersededError):
        written(port, "a", 0, attempt=1)


def test_a_task_of_a_decided_batch_writes_nothing() -> None:
    world = World(0, QUIET)
    port = port_of(world)
    protocol.commit_batch(port, [written(port, "a", 0)], 0)
    again = written(port, "b", 0)
    assert again.transaction is None
    protocol.commit_batch(port, [again], 0)
    assert world.brokers.committed == [(0, 0, 0)]


def test_an_older_copy_of_a_checkpoint_is_refused() -> None:
    port = port_of(World(0, QUIET))
    for batch in range(3):
        protocol.commit_batch(port, [written(port, "a", batch)], batch)
    with pytest.raises(ClientError, match="batch 2 of this query was already written"):
        written(port, "b", 1)


def test_nothing_is_decided_for_a_transaction_that_has_ended() -> None:
    world = World(0, QUIET)
    port = port_of(world)
    done = written(port, "a", 0)
    assert done.transaction is not None
    world.brokers.begin(done.transaction.name)
    with pytest.raises(ClientError, match=r"took so long .* expired"):
        protocol.commit_batch(port, [done], 0)
    assert port.read(QUERY).decision is None


def test_nothing_is_decided_for_a_transaction_that_is_about_to_end() -> None:
    port = port_of(World(0, QUIET))
    port.is_late = True
    with pytest.raises(ClientError, match="is about to expire"):
        protocol.commit_batch(port, [written(port, "a", 0)], 0)


def test_a_decided_transaction_that_someone_aborted_is_said_to_be_lost() -> None:
    world = World(0, Chances(die_at=-1))
    port = port_of(world)
    done = written(port, "a", 0)
    assert done.transaction is not None
    protocol._decide(port, port.read(QUERY), [done], 0)
    world.brokers.begin(done.transaction.name)
    with pytest.raises(LostTransactionError, match="their records are lost"):
        written(port, "b", 1)


def test_a_failed_task_aborts_what_it_began() -> None:
    world = World(0, QUIET)
    port = port_of(world)

    def write(begin: Begin) -> bool:
        port.write(begin(("out", 0)), (0, 0, 0))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        protocol.run_task(port, task("a", 0), write)
    assert world.open_names() == []


def test_messages_of_different_runs_are_refused() -> None:
    port = port_of(World(0, QUIET))
    done = [written(port, "a", 0), written(port, "b", 0)]
    with pytest.raises(ClientError, match="2 different runs"):
        protocol.commit_batch(port, done, 0)


def test_a_finished_table_leaves_no_entries_and_a_late_attempt_writes_nothing() -> None:
    world = World(0, QUIET)
    port, late = port_of(world), port_of(world)
    protocol.commit_batch(port, [written(port, "a", 0)], 0)
    protocol.forget(port, QUERY)
    assert late.read(QUERY).keys == {}
    for reader in (port, late):
        with pytest.raises(SupersededError):
            written(reader, "a", 0, attempt=1)
    assert world.open_names() == []
    assert world.brokers.committed == [(0, 0, 0)]
    world.brokers.compact(world.brokers.end)
    assert world.brokers.log == []


def test_names_tell_their_claim() -> None:
    assert protocol.claim_of("moldau-spark-q-12-0-5", "q") == 12
    assert protocol.claim_of("moldau-spark-q-x", "q") is None
    assert protocol.claim_of("moldau-spark-other-12-0-5", "q") is None
