"""Owns how a planted mistake is looked for: world after world, until one breaks a rule."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from sim.mutants import Mutant, compaction, groups, planted, raft, repairs, storage
from sim.plan import Plan
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
    *repairs.MUTANTS,
)


class Found(NamedTuple):
    """What gave a mutant away."""

    seed: int
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
            "faults": mutant.faults,
            "pause_seconds": 0.1,
            **Plan.SMALLEST,
            "partitions": 2,
            **mutant.plan,
        },
    )


def hunt(mutant: Mutant, events_max: int = EVENTS_MAX) -> Found | None:
    """None: it lives."""
    events = 0
    seed = 0
    with planted(mutant):
        while events < events_max:
            seed += 1
            world = World(plan_for(mutant, seed))
            try:
                world.run()
            except Violation as violation:
                return Found(seed, events + world.scheduler.events, str(violation))
            events += world.scheduler.events
    return None


def hunt_all(names: list[str] | None = None) -> Iterator[tuple[Mutant, Found | None]]:
    for mutant in ALL:
        if not names or mutant.name in names:
            yield mutant, hunt(mutant)
