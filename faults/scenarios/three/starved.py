"""The scenario of brokers that get too little of the processor, all at once."""

import random
import re
import time
from typing import Final

from faults.run import Run
from faults.scenarios.three.processes import BROKERS, everything

_LED: Final = re.compile(r"is the metadata leader \(epoch (\d+)\)")
_CALM_SECONDS: Final = 15.0
_STILL_SECONDS_MAX: Final = 2.5
"""Some longer than an election waits, most not."""
_ELECTIONS_PER_BURST_MAX: Final = 0.5


def starved(run: Run) -> None:
    """Brokers stand still again and again, each by itself; then elections calm down at once."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS)
    run.start_load()
    run.await_whole()
    before = _metadata_epoch(run)
    acks = run.acks()
    run.fault("starved")
    bursts = _starve(run, rng, 15.0 if run.quick else 90.0)
    during = _metadata_epoch(run) - before
    starved = sum("process stalled" in node.output for node in run.nodes)
    run.expect(starved == BROKERS, f"only {starved} brokers say that they stood still")
    run.proof(
        f"{bursts} times a broker stood still for up to {_STILL_SECONDS_MAX} s; "
        f"{run.acks() - acks} acks meanwhile"
    )
    run.await_whole()
    run.await_balanced()
    run.await_acks_of(everything(run))
    run.healed()
    settled, leads = _metadata_epoch(run), run.cluster.epochs()
    time.sleep(_CALM_SECONDS)
    run.expect(_metadata_epoch(run) == settled, "the metadata changes its leader without a reason")
    run.expect(run.cluster.epochs() == leads, "partitions change their leaders without a reason")
    run.expect(
        during <= bursts * _ELECTIONS_PER_BURST_MAX,
        f"{during} elections of a metadata leader in {bursts} standstills",
    )
    run.note(f"{during} elections of a metadata leader meanwhile, none afterwards")
    run.finish()


def _starve(run: Run, rng: random.Random, seconds: float) -> int:
    """Stop and resume every broker at random, for so long; returns how often one was stopped."""
    end = time.monotonic() + seconds
    bursts = 0
    due = {node.number: time.monotonic() + rng.uniform(0, 1) for node in run.nodes}
    while time.monotonic() < end:
        number = min(due, key=lambda each: due[each])
        time.sleep(max(0.0, due[number] - time.monotonic()))
        node = run.nodes[number - 1]
        if node.state() == "T":
            node.resume()
            due[number] += rng.uniform(0.1, _STILL_SECONDS_MAX)
        else:
            node.pause()
            bursts += 1
            due[number] += rng.uniform(0.1, _STILL_SECONDS_MAX)
    for node in run.nodes:
        node.resume()
    return bursts


def _metadata_epoch(run: Run) -> int:
    """The last one in which somebody was elected."""
    return max(int(epoch) for node in run.nodes for epoch in _LED.findall(node.output))
