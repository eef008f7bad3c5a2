"""Owns the command line of the simulation: one seed to look at, or as many as fit into a time.

python -m moldau.testing.simulation --seed 7 --steps 5000 --trace
python -m moldau.testing.simulation --seconds 600
"""

import argparse
import sys
import time
from collections import Counter

from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.world import World

STEPS = 3000
DISK_EVERY = 4
"""In a long run every fourth seed runs on the simulated disk, which is slower."""


def run_one(seed: int, steps: int, kind: str, *, trace: bool) -> World:
    """A world after faults throughout and a healed end. Raises Violation."""
    world = World(seed=seed, kind=kind)
    if trace:
        world.notes = []
    try:
        world.run(steps)
        world.settle()
    finally:
        for note in world.notes or []:
            print(note)
    return world


def run_long(seconds: float, first_seed: int, steps: int) -> int:
    """Seed after seed; returns the exit code."""
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    seeds = failures = 0
    simulated_ms = 0
    cpu_began = time.process_time()
    while time.perf_counter() - began < seconds:
        seed = first_seed + seeds
        kind = "disk" if seed % DISK_EVERY == 0 else "memory"
        seeds += 1
        try:
            world = run_one(seed, steps, kind, trace=False)
        except Violation as violation:
            failures += 1
            print(f"seed={seed} kind={kind} steps={steps}: {violation}", flush=True)
            continue
        counts.update(world.counts)
        counts["events"] += world.events
        counts["acknowledged"] += world.acks
        simulated_ms += world.now
    took = time.perf_counter() - began
    events = counts.pop("events", 0)
    rate = events / (time.process_time() - cpu_began)
    print(
        f"{seeds} seeds, {events} events ({rate:.0f} per second of a core), "
        f"{simulated_ms / 3_600_000:.1f} simulated hours in {took:.0f} s; "
        f"{counts.pop('acknowledged', 0)} proposals acknowledged; {failures} violations"
    )
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    return 1 if failures else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="moldau.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--kind", choices=("memory", "disk"), default="memory")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--seconds", type=float, help="run seed after seed for this long")
    options = parser.parse_args(arguments)
    if options.seconds is not None:
        return run_long(options.seconds, options.seed, options.steps)
    began = time.process_time()
    try:
        world = run_one(options.seed, options.steps, options.kind, trace=options.trace)
    except Violation as violation:
        print(f"seed={options.seed} kind={options.kind} steps={options.steps}: {violation}")
        return 1
    rate = world.events / (time.process_time() - began)
    print(
        f"seed={options.seed} kind={options.kind}: "
        f"{world.events} events ({rate:.0f} per second of a core), "
        f"{world.now / 1000:.1f} simulated seconds, {world.acks} proposals acknowledged, "
        f"trace {world.trace:08x}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
