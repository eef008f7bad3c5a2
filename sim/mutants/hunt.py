"""How a planted mistake is looked for: world after world, until one breaks a rule, or by the
script that was written for it."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from sim.mutants import (
    Mutant,
    compaction,
    data,
    groups,
    kafka,
    metadata,
    peers,
    planted,
    queues,
    raft,
    repairs,
    storage,
    transactions,
)
from sim.plan import Plan
from sim.scenario import run_scenario
from sim.scene import Violation
from sim.world import World

EVENTS_MAX: Final = 3_000_000
"""Every mutant has to be found within so many events."""
_SECONDS: Final = 40.0

ALL: Final = (
    *raft.MUTANTS,
    *storage.MUTANTS,
    *compaction.MUTANTS,
    *groups.MUTANTS,
    *metadata.MUTANTS,
    *transactions.MUTANTS,
    *queues.MUTANTS,
    *data.MUTANTS,
    *peers.MUTANTS,
    *kafka.MUTANTS,
    *repairs.MUTANTS,
)


SCENARIOS: Final = Path(__file__).parents[2] / "tests" / "scenarios"


def find(name: str) -> Mutant:
    """Raises ValueError."""
    for mutant in ALL:
        if mutant.name.lower() == name.lower():
            return mutant
    near = get_close_matches(name, [mutant.name for mutant in ALL], 3)
    raise ValueError(f"no mutant is called {name}; near: {', '.join(near) or 'none'}")


class Found(NamedTuple):
    """What gave a mutant away."""

    by: str
    """The seed or the script."""
    events: int
    """Of all worlds up to there."""
    what: str


def plan_for(mutant: Mutant, seed: int) -> Plan:
    """A world in which it should show."""
    plan = Plan.draw(seed, _SECONDS)
    return replace(
        plan,
        **{
            "brokers": 3,
            "replication": 3,
            "faults": mutant.faults or {},
            "pause_seconds": 0.1,
            **Plan.SMALLEST,
            "partitions": 2,
            **mutant.plan,
        },
    )


def hunt(mutant: Mutant, events_max: int = EVENTS_MAX) -> Found | None:
    """None: it lives."""
    with planted(mutant):
        if mutant.faults is None:
            return _play_scripts(mutant)
        events = 0
        seed = 0
        while events < events_max:
            seed += 1
            world = World(plan_for(mutant, seed))
            try:
                world.run()
            except Violation as violation:
                return Found(f"seed {seed}", events + world.scheduler.events, str(violation))
            events += world.scheduler.events
    return None


def _play_scripts(mutant: Mutant) -> Found | None:
    events = 0
    for name in mutant.scenarios:
        written = (SCENARIOS / f"{name}.txt").read_text()
        played = run_scenario(written)
        events += played.events
        if played.text != written:
            lines = zip(played.text.splitlines(), written.splitlines(), strict=False)
            line = next((got for got, wanted in lines if got != wanted), "the end")
            return Found(f"{name}.txt", events, line)
    return None


def hunt_all(wanted: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, Found | None]]:
    """In so many processes."""
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(
            wanted, pool.map(_hunt_named, [mutant.name for mutant in wanted]), strict=True
        )


def _hunt_named(name: str) -> Found | None:
    return hunt(find(name))
