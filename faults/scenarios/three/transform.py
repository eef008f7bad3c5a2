"""Owns the scenario of applications that consume, transform and produce, exactly once."""

import random
import time

from faults.namespaces import cannot_use_namespaces
from faults.network import name_of
from faults.nodes import Node
from faults.run import Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill
from faults.scenarios.three.transactions import STATE, coordinator

LOAD = Load(partitions=6, replication=3, rate=30.0, consumers=0)
OUTPUT = "faults-out"
_OFFSETS = "__consumer_offsets"
_WORKERS = 3
_ISOLATED_SECONDS = 4.0
_CAUGHT_UP_SECONDS_MAX = 60.0


def exactly_once(run: Run) -> None:
    """Leaders and coordinators die or are cut off, workers come and go: each input once."""
    rng = random.Random(run.seed)
    run.start_brokers(
        BROKERS,
        network="proxies" if cannot_use_namespaces() else "namespaces",
        settings={"GROUP__INITIAL_REBALANCE_DELAY_MS": "0"},
    )
    run.start_load()
    run.create_topic(OUTPUT)
    run.start_crew(OUTPUT, _WORKERS)
    run.await_transformed(100)
    kinds = ("coordinator of transactions", "coordinator of the group", "leader")
    killed = isolated = 0
    for turn in range(3 if run.quick else 8):
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
    told = run.network.proof(name_of(node.number), name_of(others[0].number), port)
    run.expect(bool(told), f"something passed from {node.number} to {others[0].number}")
    run.network.heal()
    run.healed()
