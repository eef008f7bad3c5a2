"""Scenarios of processes that die or stand still."""

import time

from faults.run import Load, Run

_ACKS_BETWEEN = 200
_IN_FLIGHT_SECONDS = 0.5
"""Acks that were on their way when the broker stopped may arrive for this long."""


def kill_all(run: Run) -> None:
    """SIGKILL in the middle of writes, again and again: every acked record is there after it."""
    run.start_brokers()
    run.start_load()
    times = 4 if run.quick else 20
    for _ in range(times):
        run.await_acks(_ACKS_BETWEEN)
        run.fault("kill")
        code = run.broker.kill()
        run.expect(code == -9, f"the broker ended with {code}, not by the signal")
        run.restart(run.broker)
    run.await_acks(_ACKS_BETWEEN)
    run.proof(f"{times} processes ended by signal 9")
    run.finish()


def pause(run: Run) -> None:
    """SIGSTOP, and SIGCONT once every client has given up on its requests."""
    run.start_brokers()
    run.start_load()
    seconds = [3.0] if run.quick else [3.0, 12.0, 30.0]
    for length in seconds:
        run.await_acks(_ACKS_BETWEEN)
        started = run.fault("pause")
        with run.paused(run.broker):
            run.proof(f"state {run.broker.state()} for {length:.0f} s")
            time.sleep(length)
            ended = time.monotonic_ns()
        acks = run.acks_between(started + int(_IN_FLIGHT_SECONDS * 1e9), ended)
        run.expect(acks == 0, f"{acks} acks came from a broker that stood still")
        run.await_acks(_ACKS_BETWEEN)
    run.finish()


def recovery(run: Run) -> None:
    """How long a start takes after SIGKILL, by the size of the log."""
    run.start_brokers()
    run.start_load()
    sizes = [4, 32] if run.quick else [8, 64, 256]
    for megabytes in sizes:
        while run.broker.data_bytes < megabytes << 20 and run.result.passed:
            run.await_acks(200)
        run.fault("kill")
        run.broker.kill()
        run.restart(run.broker)
        run.await_acks(1)
    run.proof(f"{len(sizes)} processes ended by signal 9")
    run.finish()


RECOVERY_LOAD = Load(producers=2, consumers=0, partitions=4, rate=2000.0, record_bytes=8000)
