"""Controls: what promises nothing must lose something, and the checker must see it."""

import time

from faults.network import name_of
from faults.run import Load, Run
from faults.scenarios.disks import expect_loss
from faults.scenarios.three.processes import BROKERS, everything, kill

ACKS_ONE_LOAD = Load(partitions=1, replication=3, rate=100.0, consumers=0, plain=True, acks="1")
_ALONE_SECONDS = 0.6
"""Less than it takes a leader to find out that nobody follows."""


def leader_lost_with_acks_one(run: Run) -> None:
    """A leader that nobody hears acks by itself (acks=1), and dies."""
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    run.await_whole()
    run.await_acks_of(everything(run), 20)
    leader = run.cluster.leader(0)
    for other in run.cluster.others(leader):
        run.network.cut(name_of(leader.number), name_of(other.number), both=False)
    started = run.fault("leader alone, then killed")
    time.sleep(_ALONE_SECONDS)
    kill(run, leader)
    acks = run.acks_between(started, time.monotonic_ns())
    run.network.heal()
    run.await_acks_of(everything(run), 20)
    run.healed()
    run.restart(leader)
    run.await_whole()
    run.expect(acks > 0, "nothing was acked by the leader alone")
    run.proof(f"{acks} acks by an isolated leader, before signal 9")
    expect_loss(run)
