"""The scenario of applications that consume, transform and produce, exactly once."""

import random
import time

from faults.checker import Anomaly
from faults.namespaces import cannot_use_namespaces
from faults.network import name_of
from faults.nodes import Node
from faults.run import Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill
from faults.scenarios.three.transactions import ONE_COORDINATOR, STATE, coordinator

LOAD = Load(partitions=6, replication=3, rate=30.0, consumers=0)
PLAIN_LOAD = Load(partitions=6, replication=3, rate=30.0, consumers=0, plain=True)
OUTPUT = "faults-out"
_OFFSETS = "__consumer_offsets"
_SETTINGS = ONE_COORDINATOR | {
    "GROUP__INITIAL_REBALANCE_DELAY_MS": "0",
    "GROUP__SESSION_TIMEOUT_MS_MIN": "1000",
}
_WORKERS = 3
_ISOLATED_SECONDS = 4.0
_CAUGHT_UP_SECONDS_MAX = 60.0


def exactly_once(run: Run) -> None:
    """Leaders and coordinators die or are cut off, workers come and go: each input once."""
    rng = random.Random(run.seed)
    run.start_brokers(
        BROKERS,
        network="proxies" if cannot_use_namespaces() else "namespaces",
        settings=_SETTINGS,
    )
    run.start_load()
    run.create_topic(OUTPUT)
    run.start_crew(OUTPUT, _WORKERS)
    run.await_transformed(100)
    kinds = ("coordinator of transactions", "coordinator of the group", "leader")
    killed = isolated = 0
    for turn in range(2 if run.quick else 8):
        run.await_whole()
        kind = kinds[turn % len(kinds)]
        victim = _victim(run, kind, rng)
        run.await_transformed(30)
        if turn % 2 == 0:
            run.fault(f"kill {kind}")
            kill(run, victim)
            run.await_acks_of(everything(run))
            run.healed()
            run.restart(victim)
            killed += 1
        else:
            run.fault(f"isolate {kind}")
            _isolate(run, victim)
            isolated += 1
        run.await_acks_of(everything(run))
    run.proof(f"{killed} brokers ended by signal 9, {isolated} cut off their peers")
    run.await_whole()
    run.stop_load("produce")
    run.calm_crew()
    run.await_caught_up(OUTPUT, _CAUGHT_UP_SECONDS_MAX)
    run.stop_crew()
    run.expect_stable(OUTPUT)
    run.finish()
    run.judge_output(OUTPUT)
    run.note(f"nothing was transformed for up to {run.longest_pause():.0f} s")


def without_transactions(run: Run) -> None:
    """The same workers come and go, with outputs and positions that are not one."""
    run.start_brokers(BROKERS, settings=_SETTINGS)
    run.start_load()
    run.create_topic(OUTPUT)
    run.fault("workers come and go")
    run.start_crew(OUTPUT, _WORKERS)
    for _ in range(2 if run.quick else 4):
        run.await_transformed(200)
    run.stop_load("produce")
    run.calm_crew()
    run.await_caught_up(OUTPUT, _CAUGHT_UP_SECONDS_MAX)
    run.stop_crew()
    run.allow(Anomaly.DUPLICATE, Anomaly.REORDERED)
    run.finish()
    verdict = run.judge_output(OUTPUT)
    duplicates = verdict.count(Anomaly.DUPLICATE)
    run.expect(duplicates > 0, "no duplicate was seen, so none would be found in other runs")
    run.note(f"{duplicates} inputs were transformed twice, as it must be seen")


def _victim(run: Run, kind: str, rng: random.Random) -> Node:
    if kind == "leader":
        return run.cluster.leader(rng.randrange(run.load.partitions))
    return coordinator(run, STATE if "transactions" in kind else _OFFSETS)


def _isolate(run: Run, node: Node) -> None:
    """From its peers; the workers still reach it, and must not believe it."""
    others = run.cluster.others(node)
    for other in others:
        run.network.cut(name_of(node.number), name_of(other.number))
    time.sleep(_ISOLATED_SECONDS)
    port = int(others[0].raft.rpartition(":")[2])
    reported = run.network.proof(name_of(node.number), name_of(others[0].number), port)
    run.expect(bool(reported), f"something passed from {node.number} to {others[0].number}")
    run.network.heal()
    run.healed()
