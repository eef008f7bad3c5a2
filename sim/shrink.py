"""How a failing world is made smaller: less time, fewer kinds of faults, fewer faults.

Each attempt is a run of its own. What still fails, in whatever way, is kept: a smaller world that
breaks another rule is as good a beginning.
"""

import time
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from sim.plan import Plan
from sim.scene import Violation
from sim.scheduler import START
from sim.world import World

_ROUNDING_SECONDS = 0.5


def fails(plan: Plan) -> tuple[World, Violation] | None:
    """The world and what is wrong with it; None if nothing is."""
    world = World(plan)
    try:
        world.run()
    except Violation as violation:
        return world, violation
    return None


def shrink(plan: Plan, *, seconds_max: float, report: Callable[[str], None]) -> Plan:
    """The smallest failing plan that was found in that much real time; `plan` must fail."""
    began = time.monotonic()
    found = fails(plan)
    if found is None:
        raise ValueError("the plan does not fail")
    best = _cut_time(plan, found[0])
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for attempt in _smaller(best, found[0]):
            if time.monotonic() - began > seconds_max:
                return best
            failed = fails(attempt)
            if failed is not None:
                found, is_smaller = failed, True
                best = _cut_time(attempt, found[0])
                report(f"smaller: {_described(best, found[0])}")
                break
    return best


def _cut_time(plan: Plan, world: World) -> Plan:
    """Nothing that comes after the failure matters."""
    elapsed = world.scheduler.now - START - world.began_at
    if 0 < elapsed < plan.seconds:
        return replace(plan, seconds=elapsed + _ROUNDING_SECONDS)
    return plan


def _described(plan: Plan, world: World) -> str:
    left = world.faults.faults_total - len(plan.left_out)
    return f"{plan.seconds:.1f} s, {left} faults of {len(plan.faults)} kinds"


def _smaller(plan: Plan, world: World) -> Iterator[Plan]:
    for kind in plan.faults:
        faults = {other: rate for other, rate in plan.faults.items() if other != kind}
        yield replace(plan, faults=faults, left_out=frozenset())
    for field, least in plan.SMALLEST.items():
        if getattr(plan, field) != least:
            yield replace(plan, **{field: least})
    if plan.brokers > 3:
        yield replace(plan, brokers=3)
    happened = [
        number for number in range(1, world.faults.faults_total + 1) if number not in plan.left_out
    ]
    size = max(1, len(happened) // 2)
    while True:
        for first in range(0, len(happened), size):
            yield replace(plan, left_out=plan.left_out | frozenset(happened[first : first + size]))
        if size == 1:
            return
        size //= 2
