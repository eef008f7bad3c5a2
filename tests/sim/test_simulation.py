"""Random runs with faults throughout, and what makes them worth running.

A failure prints `seed=…`: `make sim SEED=… STEPS=…` runs the same again, event by event.
"""

from collections import Counter

import pytest
from effort import seeds

from moldau.testing.simulation.__main__ import run_one
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.world import World

MEMORY_SEEDS = seeds(300)
MEMORY_STEPS = 400
CHUNK_SEEDS = 50
"""As many in one test: processes share them out."""
LONG_SEEDS = seeds(15)
LONG_STEPS = 3000
DISK_SEEDS = seeds(25)
DISK_STEPS = 800


def run(kind: str, tried: range, steps: int) -> Counter[str]:
    """Faults, then a healed majority; returns how often what happened."""
    counts: Counter[str] = Counter()
    for seed in tried:
        try:
            world = run_one(seed, steps, kind, trace=False)
        except Violation as violation:
            pytest.fail(f"seed={seed} kind={kind} steps={steps}: {violation}")
        counts.update(world.counts)
        counts["acknowledged"] += world.acks
    return counts


@pytest.mark.parametrize("first", MEMORY_SEEDS[::CHUNK_SEEDS])
def test_no_promise_breaks_in_short_runs_in_memory(first: int) -> None:
    counts = run("memory", range(first, first + CHUNK_SEEDS), MEMORY_STEPS)
    assert counts["acknowledged"] > CHUNK_SEEDS


def test_no_promise_breaks_in_long_runs_and_every_kind_of_fault_happens() -> None:
    counts = run("memory", LONG_SEEDS, LONG_STEPS)
    missing = [
        what
        for what in (
            "cuts",
            "elections",
            "flush errors",
            "full disks",
            "isolations",
            "kills",
            "member changes",
            "pauses",
            "power cuts",
            "reads",
            "retentions",
            "snapshots",
            "transfers",
            "truncations",
        )
        if not counts[what]
    ]
    assert missing == []


def test_no_promise_breaks_on_the_simulated_disk() -> None:
    counts = run("disk", DISK_SEEDS, DISK_STEPS)
    assert counts["crashes inside a write"] > 0


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_same_seed_gives_the_same_run(kind: str) -> None:
    def trace(seed: int) -> tuple[int, int, int]:
        world = World(seed=seed, kind=kind)
        world.run(1500)
        return world.trace, world.now, world.acks

    traces = [trace(seed) for seed in range(6)]
    assert traces == [trace(seed) for seed in range(6)]
    assert len(set(traces)) == len(traces)
