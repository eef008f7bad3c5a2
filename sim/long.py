"""Long runs: world after world, on several cores, and what came of them."""

import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import count
from typing import Final

from msgspec import Struct

from sim.coverage import Statements
from sim.plan import Plan
from sim.scene import Violation
from sim.scheduler import START
from sim.world import World

_SEEDS_PER_JOB: Final = 1_000_000
"""Between the first seeds of two processes."""


class Summary(Struct):
    """Of many worlds."""

    worlds: int = 0
    events: int = 0
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    faults: dict[str, int] = {}
    """By kind."""
    counts: dict[str, int] = {}
    """What clients did, by kind."""
    violations: list[str] = []

    def add(self, other: "Summary") -> None:
        self.worlds += other.worlds
        self.events += other.events
        self.simulated_seconds += other.simulated_seconds
        self.cpu_seconds += other.cpu_seconds
        self.faults = dict(Counter(self.faults) + Counter(other.faults))
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        self.violations = [*self.violations, *other.violations]

    def described(self) -> str:
        hours = self.simulated_seconds / 3600
        rate = self.simulated_seconds / max(self.cpu_seconds, 1e-9)
        return (
            f"{self.worlds} worlds, {self.events} events, {hours:.2f} simulated hours "
            f"({rate:.0f} x real time per core), {len(self.violations)} violations\n"
            + ", ".join(
                f"{what}: {times}"
                for counted in (self.faults, self.counts)
                for what, times in sorted(counted.items())
            )
        )


def play(plan: Plan) -> Summary:
    """One world."""
    began = time.process_time()
    world = World(plan)
    summary = Summary(worlds=1)
    try:
        world.run()
    except Violation as violation:
        summary.violations = [f"seed={plan.seed} seconds={plan.seconds:g}: {violation}"]
    summary.events = world.scheduler.events
    summary.simulated_seconds = world.scheduler.now - START
    summary.cpu_seconds = time.process_time() - began
    summary.faults, summary.counts = dict(world.counts), dict(world.scene.counts)
    return summary


def _play_many(first: int, minutes: float, virtual_seconds: float) -> Summary:
    end = time.monotonic() + minutes * 60
    total = Summary()
    for seed in count(first):
        if time.monotonic() >= end:
            break
        played = play(Plan.draw(seed, virtual_seconds))
        for violation in played.violations:
            print(violation, flush=True)
        total.add(played)
    return total


def run_long(first: int, minutes: float, virtual_seconds: float, jobs: int) -> Summary:
    """Seed after seed, in so many processes."""
    run = partial(_play_many, minutes=minutes, virtual_seconds=virtual_seconds)
    if jobs == 1:
        return run(first)
    total = Summary()
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, first + job * _SEEDS_PER_JOB) for job in range(jobs)]
        for future in as_completed(futures):
            total.add(future.result())
    return total


def _trace_many(seeds: range, virtual_seconds: float) -> dict[str, set[int]]:
    with Statements() as statements:
        for seed in seeds:
            for violation in play(Plan.draw(seed, virtual_seconds)).violations:
                print(violation, flush=True)
    return statements.seen


def count_statements(first: int, worlds: int, virtual_seconds: float, jobs: int) -> Statements:
    """What so many worlds execute. Slower than a plain run."""
    total = Statements()
    with ProcessPoolExecutor(jobs) as pool:
        shares = [range(first + job, first + worlds, jobs) for job in range(jobs)]
        for seen in pool.map(partial(_trace_many, virtual_seconds=virtual_seconds), shares):
            total.add(seen)
    return total
