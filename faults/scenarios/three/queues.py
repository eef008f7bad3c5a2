"""The scenarios of workers that take single messages from a topic."""

import random
import subprocess
import time
from typing import Final

from faults.namespaces import cannot_use_namespaces
from faults.network import name_of
from faults.nodes import Node
from faults.run import Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill
from faults.scenarios.three.transactions import ONE_COORDINATOR, coordinator

LOAD = Load(partitions=3, replication=3, rate=60.0, members=1)
"""With a Kafka group that reads the same topic."""
_SETTINGS = ONE_COORDINATOR | {"GROUP__INITIAL_REBALANCE_DELAY_MS": "0"}
_LEDGER: Final = "__queue_state"
_WORKERS: Final = 4
_ORDERED_WORKERS: Final = 2
_PAST_THE_LEASE_SECONDS: Final = 4.0
"""Also long enough for others to be elected in place of a leader."""
_STOOD_SECONDS: Final = (5.0, 13.0)
"""One of them longer than a ledger takes to give up a write."""
_DRAINED_SECONDS_MAX: Final = 90.0
_KINDS: Final = (
    "pause a worker past its lease",
    "kill a leader",
    "kill a worker",
    "pause a leader past its leases",
    "kill the leader of the ledger",
    "isolate a leader",
    "pause the leader of the ledger",
)


def workers_and_leaders(run: Run) -> None:
    """Workers die or stand still past their leases; leaders of messages and of the ledger die,
    stand still or are cut off their peers: each message is settled once."""
    rng = random.Random(run.seed)
    run.start_brokers(
        BROKERS,
        network="proxies" if cannot_use_namespaces() else "namespaces",
        settings=_SETTINGS,
    )
    run.start_load()
    count = _WORKERS // 2 if run.quick else _WORKERS
    workers = [run.start_worker(f"q{number}") for number in range(1, count + 1)]
    for number in range(1, _ORDERED_WORKERS + 1):
        run.start_worker(f"o{number}", "order")
    run.await_settled(100)
    done = dict.fromkeys(_KINDS, 0)
    for turn in range(3 if run.quick else 2 * len(_KINDS)):
        kind = _KINDS[turn % len(_KINDS)]
        chosen = rng.randrange(count)
        run.fault(kind)
        if kind == "pause a worker past its lease":
            _pause_worker(run, workers[chosen])
        elif kind == "kill a worker":
            run.kill_worker(workers[chosen])
            workers[chosen] = run.start_worker(f"q{count + 1 + turn}")
        else:
            _break_broker(run, kind, rng)
        done[kind] += 1
        run.healed()
        run.await_settled(50)
    run.proof("; ".join(f"{kind}: {times}" for kind, times in done.items() if times))
    run.await_whole()
    run.stop_load("produce")
    run.drain_queue(_DRAINED_SECONDS_MAX)
    run.stop_load("work")
    run.await_group()
    run.read_dead_letters()
    run.finish()
    run.judge_ordered_workers()
    verdict = run.judge_workers()
    run.expect(verdict.stale > 0, "no ack came too late, so none was refused")
    run.note(f"{verdict.stale} settlements came too late and were refused")


def _pause_worker(run: Run, worker: "subprocess.Popen[bytes]") -> None:
    with run.paused_worker(worker):
        time.sleep(_PAST_THE_LEASE_SECONDS)


def _break_broker(run: Run, kind: str, rng: random.Random) -> None:
    """One broker is out of order for a while, and comes back with what it believes to know."""
    run.await_whole()
    is_ledger = "ledger" in kind
    leader = run.cluster.leader(rng.randrange(run.load.partitions))
    victim = coordinator(run, _LEDGER) if is_ledger else leader
    if kind.startswith("kill"):
        kill(run, victim)
        run.await_settled(30)
        run.await_acks_of(everything(run))
        run.restart(victim)
    elif kind.startswith("pause"):
        with run.paused(victim):
            time.sleep(rng.choice(_STOOD_SECONDS))
            run.await_settled(30)
    else:
        _isolate(run, victim)
    run.await_whole()


def _isolate(run: Run, node: Node) -> None:
    """From its peers; workers still reach it, and it must give them nothing and settle nothing."""
    others = run.cluster.others(node)
    for other in others:
        run.network.cut(name_of(node.number), name_of(other.number))
    time.sleep(_PAST_THE_LEASE_SECONDS)
    run.await_settled(30)
    port = int(others[0].raft.rpartition(":")[2])
    reported = run.network.proof(name_of(node.number), name_of(others[0].number), port)
    run.expect(bool(reported), f"something passed from {node.number} to {others[0].number}")
    run.network.heal()
