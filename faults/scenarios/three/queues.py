"""Owns the scenarios of workers that take single messages from a topic."""

import random
import subprocess
import time

from faults.run import Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill

LOAD = Load(partitions=3, replication=3, rate=60.0, members=1)
"""With a Kafka group that reads the same topic."""
_SETTINGS = {"GROUP__INITIAL_REBALANCE_DELAY_MS": "0"}
_WORKERS = 4
_PAST_THE_LEASE_SECONDS = 4.0
_DRAINED_SECONDS_MAX = 90.0


def workers_and_leaders(run: Run) -> None:
    """Workers die or stand still past their leases, leaders die: each message is settled once."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS, settings=_SETTINGS)
    run.start_load()
    workers = [run.start_worker(f"q{number}") for number in range(1, _WORKERS + 1)]
    run.await_settled(100)
    killed = paused = leaders = 0
    for turn in range(3 if run.quick else 12):
        chosen = rng.randrange(_WORKERS)
        match turn % 3:
            case 0:
                run.fault("pause a worker past its lease")
                _pause(run, workers[chosen])
                paused += 1
            case 1:
                run.fault("kill a leader")
                victim = run.cluster.leader(rng.randrange(run.load.partitions))
                kill(run, victim)
                run.await_settled(30)
                run.await_acks_of(everything(run))
                run.restart(victim)
                run.await_whole()
                leaders += 1
            case _:
                run.fault("kill a worker")
                run.kill_worker(workers[chosen])
                workers[chosen] = run.start_worker(f"q{_WORKERS + 1 + turn}")
                killed += 1
        run.healed()
        run.await_settled(50)
    run.proof(
        f"{leaders} leaders and {killed} workers ended by signal 9, "
        f"{paused} workers stopped for {_PAST_THE_LEASE_SECONDS:.0f} s"
    )
    run.await_whole()
    run.stop_load("produce")
    run.drain_queue(_DRAINED_SECONDS_MAX)
    run.stop_load("work")
    run.await_group()
    run.read_dead_letters()
    run.finish()
    verdict = run.judge_workers()
    run.expect(verdict.stale > 0, "no ack came too late, so none was refused")
    run.note(f"{verdict.stale} settlements came too late and were refused")


def _pause(run: Run, worker: "subprocess.Popen[bytes]") -> None:
    with run.paused_worker(worker):
        time.sleep(_PAST_THE_LEASE_SECONDS)
