"""Scenarios of brokers of a cluster that die, stand still, or are restarted."""

import random
import time

from faults.clock import CLOCK_VARIABLE
from faults.flags import put
from faults.measures import spread
from faults.nodes import Node
from faults.run import Load, Run

BROKERS = 3
LOAD = Load(partitions=6, replication=3, rate=60.0, raw=True)
FEW = Load(partitions=2, replication=3, rate=40.0)
"""Two partitions have two leaders at most, so one broker only follows."""
GROUP_LOAD = Load(partitions=6, replication=3, rate=40.0, consumers=0, members=3)
_P50_SECONDS_MAX, _P99_SECONDS_MAX = 2.0, 4.0


def kill(run: Run, *nodes: Node) -> None:
    """SIGKILL to all of them at once."""
    for node in nodes:
        node.send_kill()
    for node in nodes:
        code = node.kill()
        run.expect(code == -9, f"broker {node.number} ended with {code}, not by the signal")


def everything(run: Run) -> range:
    return range(run.load.partitions)


def kill_leader(run: Run) -> None:
    """Kill a leader, wait until its partitions can be written to, start it again; many times."""
    run.start_brokers(BROKERS)
    run.start_load()
    times = 3 if run.quick else 20
    led_in_all = sum(kill_one_leader(run, turn) for turn in range(times))
    run.await_whole()
    run.proof(f"{times} leaders of {led_in_all} partitions ended by signal 9")
    run.finish()
    found = spread(run.result.unavailable_seconds)
    if found is not None and not run.quick:
        run.expect(
            found.p50 <= _P50_SECONDS_MAX and found.p99 <= _P99_SECONDS_MAX,
            f"unavailable for {found.p50:.1f} s (p50) and {found.p99:.1f} s (p99)",
        )


def kill_one_leader(run: Run, turn: int = 0) -> int:
    """Returns how many partitions it led."""
    run.await_whole()
    run.await_acks_of(everything(run))
    victim = run.cluster.leader(turn % run.load.partitions)
    led = run.cluster.led_by(victim)
    run.fault("kill leader", led)
    kill(run, victim)
    run.await_acks_of(led)
    run.healed()
    run.restart(victim)
    return len(led)


def kill_follower(run: Run) -> None:
    """Kill one that leads nothing: nobody fails, nobody else is elected."""
    run.start_brokers(BROKERS)
    run.start_load()
    times = 2 if run.quick else 10
    for _ in range(times):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.cluster.follower()
        before = run.cluster.epochs()
        run.fault("kill follower")
        kill(run, victim)
        run.await_acks_of(everything(run), 40)
        run.healed()
        run.expect(
            run.cluster.epochs() == before,
            f"epochs changed from {before} to {run.cluster.epochs()}",
        )
        run.restart(victim)
    run.await_whole()
    run.proof(f"{times} followers ended by signal 9")
    run.finish()
    verdict = run.result.verdict
    run.expect(verdict.failed + verdict.unknown == 0, "a produce failed")


def kill_all(run: Run) -> None:
    """SIGKILL to all in the middle of writes, and start them together."""
    run.start_brokers(BROKERS)
    run.start_load()
    times = 2 if run.quick else 10
    for _ in range(times):
        kill_all_once(run)
    run.await_whole()
    run.proof(f"{times * BROKERS} processes ended by signal 9")
    run.finish()


def kill_all_once(run: Run) -> None:
    run.await_acks_of(everything(run))
    run.fault("kill all")
    kill(run, *run.nodes)
    run.start(*run.nodes)
    run.result.recoveries += [(node.data_bytes, node.start_seconds) for node in run.nodes]
    run.await_acks_of(everything(run))
    run.healed()


def pause_leader(run: Run) -> None:
    """A leader stands still, others lead; when it goes on it must know that it leads no more."""
    run.start_brokers(BROKERS)
    run.start_load()
    for turn, length in enumerate([5.0] if run.quick else [3.0, 12.0, 30.0]):
        pause_one_leader(run, length, turn)
    run.await_whole()
    run.finish()


def pause_one_leader(run: Run, seconds: float, turn: int = 0) -> None:
    run.await_whole()
    run.await_acks_of(everything(run))
    victim = run.cluster.leader(turn % run.load.partitions)
    led = run.cluster.led_by(victim)
    run.record_bounds()
    run.fault("pause leader", led)
    with run.paused(victim):
        started = time.monotonic()
        run.proof(f"leader of {len(led)} in state {victim.state()} for {seconds:.0f} s")
        run.await_acks_of(everything(run))
        run.healed()
        run.record_bounds()
        time.sleep(max(0.0, seconds - (time.monotonic() - started)))
    run.record_bounds()
    run.await_acks_of(everything(run))
    run.record_bounds()


def rolling_restart(run: Run) -> None:
    """Every broker is stopped and started in turn, under load: no produce fails."""
    run.start_brokers(BROKERS)
    run.start_load()
    rounds = 1 if run.quick else 3
    for _ in range(rounds):
        for node in run.nodes:
            run.await_whole()
            run.await_acks_of(everything(run))
            led = run.cluster.led_by(node)
            run.fault("restart", led)
            code = node.stop()
            run.expect(code == 0, f"broker {node.number} stopped with {code}")
            run.await_acks_of(everything(run))
            run.healed()
            run.restart(node)
    run.await_whole()
    run.await_acks_of(everything(run))
    run.proof(f"{rounds * BROKERS} clean stops and starts")
    run.finish()
    verdict = run.result.verdict
    run.expect(verdict.failed + verdict.unknown == 0, "a produce failed")


def kill_controller(run: Run) -> None:
    """The leader of the metadata dies while topics come and go, and a group commits."""
    run.start_brokers(BROKERS)
    run.start_load()
    run.start_churn(pause_seconds=0.3)
    times = 2 if run.quick else 10
    for _ in range(times):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.cluster.node(run.cluster.controller())
        run.fault("kill metadata leader", run.cluster.led_by(victim))
        kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.restart(victim)
    run.await_whole()
    run.proof(f"{times} leaders of the metadata ended by signal 9")
    run.stop_churn()
    run.finish()


def group_failover(run: Run) -> None:
    """Brokers die under a consumer group: it misses nothing, and its commits last."""
    rng = random.Random(3)
    run.start_brokers(BROKERS, settings={"GROUP__INITIAL_REBALANCE_DELAY_MS": "0"})
    run.start_load()
    times = 2 if run.quick else 8
    for _ in range(times):
        run.await_whole()
        run.await_commits(10)
        victim = rng.choice(run.nodes)
        run.fault("kill under a group", run.cluster.led_by(victim))
        kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.await_commits(5)
        run.restart(victim)
    run.await_whole()
    run.stop_load("produce")
    run.await_group()
    run.stop_load()
    run.record_committed()
    run.proof(f"{times} processes ended by signal 9 under {run.load.members} members of a group")
    run.finish()


def clock_jump(run: Run) -> None:
    """The wall clocks of brokers jump an hour ahead and back: nothing depends on them."""
    files = {number: run.home / f"clock{number}" for number in range(1, BROKERS + 1)}
    run.start_brokers(
        BROKERS,
        module="faults.clock",
        environments={n: {CLOCK_VARIABLE: str(path)} for n, path in files.items()},
    )
    run.start_load()
    before = run.cluster.epochs()
    for seconds in (3600, -3600) if run.quick else (3600, -3600, 86_400, 0, -86_400):
        for path in files.values():
            run.await_acks_of(everything(run))
            run.fault(f"clock {seconds:+d} s")
            put(path, str(seconds))
            run.await_acks_of(everything(run), 10)
    run.expect(run.cluster.epochs() == before, f"epochs went from {before}: {run.cluster.epochs()}")
    run.proof(f"clocks were off by up to a day, {run.result.faults} jumps; no leader changed")
    run.finish()


def recovery(run: Run) -> None:
    """How long a start takes after SIGKILL, and until all is in sync again, by size of the log."""
    run.start_brokers(BROKERS)
    run.start_load()
    sizes = [4, 16] if run.quick else [8, 64, 256]
    for megabytes in sizes:
        victim = run.cluster.leader(0)
        while victim.data_bytes < megabytes << 20 and run.result.passed:
            run.await_acks(200)
        run.await_whole()
        run.fault("kill", run.cluster.led_by(victim))
        kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.restart(victim)
        started = time.monotonic()
        run.await_whole()
        run.note(
            f"{victim.data_bytes >> 20} MiB: served after {victim.start_seconds:.1f} s, "
            f"in sync {time.monotonic() - started:.1f} s later"
        )
    run.proof(f"{len(sizes)} processes ended by signal 9")
    run.finish()


RECOVERY_LOAD = Load(
    producers=1, consumers=0, partitions=4, replication=3, rate=1000.0, record_bytes=8000
)
