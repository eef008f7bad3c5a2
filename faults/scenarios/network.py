"""Scenarios of the network between clients and brokers."""

import time

from faults.checker import Anomaly
from faults.namespaces import cannot_use_namespaces
from faults.run import Load, Run

_ACKS_BETWEEN = 100
_REQUEST_SECONDS = 8.0
"""After which the clients give up on a request and send it again."""


def cut_clients(run: Run) -> None:
    """Cut the clients off, both ways and each way, for less and for more than their timeouts."""
    spaces = not cannot_use_namespaces()
    run.start_brokers(network="namespaces" if spaces else "proxies")
    run.note("cut by routing rules between namespaces" if spaces else "cut by proxies")
    run.start_load()
    # The long cuts outlast a request.
    lengths = [1.0, 9.0] if run.quick else [0.5, 2.0, 9.0, 14.0]
    for seconds in lengths:
        for way in ("both", "forward", "back"):
            if run.quick and seconds > 1 and way != "back":
                continue
            run.await_acks(_ACKS_BETWEEN)
            run.fault(f"cut {way}")
            _cut(run, way)
            time.sleep(seconds)
            _prove_cut(run, way, seconds)
            _heal(run)
    run.await_acks(_ACKS_BETWEEN)
    if run.links:
        run.proof(f"{run.links[0].counters.chunks_held} chunks held up")
        run.fault("reset")
        run.proof(f"{run.links[0].reset()} connections reset")
        run.await_acks(_ACKS_BETWEEN)
    run.finish()


def cut_plain_clients(run: Run) -> None:
    """Retries without idempotence write twice what was written: the harness must see it."""
    run.start_brokers(network="proxies")
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    run.fault("cut back")
    link = run.links[0]
    link.cut(forward=False, back=True)
    time.sleep(_REQUEST_SECONDS + 2.0)
    link.reset()
    link.heal()
    run.await_acks(_ACKS_BETWEEN)
    run.proof(f"{link.counters.chunks_held} chunks held up, {link.counters.resets} resets")
    # Two copies are also out of order, and only one is where it was acked.
    run.allow(Anomaly.DUPLICATE, Anomaly.REORDERED, Anomaly.INCONSISTENT)
    run.finish()
    seen = run.result.verdict.count(Anomaly.DUPLICATE)
    run.expect(seen > 0, "retries without idempotence wrote nothing twice: this harness sees none")
    run.note(f"duplicates, as must be seen here: {seen}")


PLAIN_LOAD = Load(plain=True)


def _cut(run: Run, way: str) -> None:
    if run.spaces is None:
        run.links[0].cut(forward=way != "back", back=way != "forward")
    elif way == "forward":
        run.spaces.cut("clients", "b1", both=False)
    else:
        run.spaces.cut("b1", "clients", both=way == "both")


def _prove_cut(run: Run, way: str, seconds: float) -> None:
    if run.spaces is not None:
        if run.spaces.reaches("clients", "b1", run.broker.port):
            run.problem(f"the cut ({way}) let a connection through")
        else:
            run.proof(f"no connection {seconds:g} s into a cut ({way})")


def _heal(run: Run) -> None:
    if run.spaces is None:
        run.links[0].heal()
    else:
        run.spaces.heal()


def slow(run: Run) -> None:
    """200 ms more each way, and 5 % of the chunks stall for as long again."""
    run.start_brokers(network="proxies")
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    run.fault("slow")
    link = run.links[0]
    link.set(delay_seconds=0.2, stall_chance=0.05, stall_seconds=0.2)
    deadline = time.monotonic() + (6.0 if run.quick else 60.0)
    while time.monotonic() < deadline and run.result.passed:
        run.await_acks(_ACKS_BETWEEN, seconds_max=10.0)
    link.heal()
    run.await_acks(_ACKS_BETWEEN)
    counters = link.counters
    run.expect(counters.chunks_delayed > 0, "nothing was delayed")
    run.expect(counters.stalls > 0, "nothing stalled")
    run.proof(f"{counters.chunks_delayed} chunks delayed, {counters.stalls} stalled")
    run.finish()
