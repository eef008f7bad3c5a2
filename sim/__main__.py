"""Simulate clusters under faults, and check that nothing is lost.

python -m sim --seed 7 --trace          one world, and what happens in it
python -m sim --seed 7 --shrink         make a failing world smaller
python -m sim --plan FILE --trace       play a world again that was made smaller
python -m sim --mutant NAME --seed 7    a world with a mistake planted in the product
python -m sim --minutes 30 --jobs 2     world after world, for so long, on two cores
python -m sim --healthy-hours 168       a week without faults, with rolling restarts
python -m sim --mutants --jobs 2        find all planted bugs
python -m sim --statements 48 --jobs 2  count what so many worlds execute
python -m sim --same-as build/compiled  play worlds interpreted and compiled, and compare them
python -m sim --write-docs              docs/reliability.md from the results that are kept

With PYTHONPATH=build/compiled, which `make compile` makes, worlds run with a compiled hot path.
"""

import argparse
import logging
import os
import sys
import time
from asyncio import events
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec

from moldau.model.compiled import described, is_compiled
from sim.healthy import run_healthy
from sim.long import count_statements, run_long
from sim.mutants import Mutant, planted
from sim.mutants.hunt import ALL, find, hunt_all, plan_for
from sim.plan import Plan
from sim.report import Hunted, keep_healthy, keep_long, keep_mutants, keep_statements, write_page
from sim.scene import Violation
from sim.scheduler import START
from sim.shrink import shrink
from sim.twins import TwinError, compare, footprints
from sim.world import World

_NOT_COMPILED = (
    "error: a compiled hot path has no statements to count, and no place for planted mistakes: "
    "leave PYTHONPATH out"
)
_SHRINK_SECONDS = 300.0


class _Lines(logging.Handler):
    """What brokers log, as lines of the world's trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = getattr(events._get_running_loop(), "name", "")
        self._world.say(process, f"{record.levelname.lower()}: {record.getMessage()}")


def run_one(plan: Plan, *, trace: bool = False) -> tuple[World, Violation | None]:
    """A world, and what went wrong in it."""
    world = World(plan)
    logger = logging.getLogger("moldau")
    logger.propagate = False
    handler: logging.Handler = logging.NullHandler()
    if trace:
        world.lines = []
        handler = _Lines(world)
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        world.run()
    except Violation as violation:
        return world, violation
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    return world, None


def _describe(world: World, failure: Violation | None, took: float) -> str:
    simulated = world.scheduler.now - START
    text = (
        f"seed={world.plan.seed}: {world.scheduler.events} events, {simulated:.0f} simulated "
        f"seconds in {took:.1f} s ({simulated / took:.0f} x), {world.faults.faults_total} faults, "
        f"{world.scene.counts['acked']} acked, trace {world.trace:08x}, {described()}"
    )
    return f"{text}\nVIOLATION: {failure}" if failure is not None else text


def _hunt(names: list[str], jobs: int) -> int:
    """Returns the exit code."""
    try:
        wanted = [find(name) for name in names] or list(ALL)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    hunted = []
    for mutant, found in hunt_all(wanted, jobs):
        events = None if found is None else found.events
        hunted.append(
            Hunted(
                name=mutant.name,
                layer=mutant.layer,
                about=mutant.about,
                events=events,
                by="" if found is None else found.by,
            )
        )
        reported = "LIVES" if found is None else f"{found.by}, {found.events} events: {found.what}"
        print(f"{mutant.layer}: {mutant.name}: {reported[:200]}", flush=True)
    keep_mutants(hunted)
    return 1 if any(one.events is None for one in hunted) else 0


def _count_statements(options: argparse.Namespace) -> int:
    statements = count_statements(
        options.seed, options.statements, options.virtual_seconds, options.jobs
    )
    counted = statements.by_package()
    for name, lines in statements.missing().items() if options.missing else ():
        print(f"{name}: {' '.join(map(str, lines))}")
    for package, (executed, total) in counted.items():
        print(f"{package}: {executed} of {total} statements, {100 * executed / total:.1f} %")
    keep_statements(counted)
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    seeds = range(options.seed, options.seed + options.worlds)
    try:
        is_same = compare(
            options.same_as, seeds, options.virtual_seconds, partial(print, flush=True)
        )
    except TwinError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if is_same else 1


def _shrink(plan: Plan, where: Path, again: str) -> int:
    """Returns the exit code."""
    try:
        small = shrink(plan, seconds_max=_SHRINK_SECONDS, report=partial(print, flush=True))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where.write_bytes(msgspec.json.format(msgspec.json.encode(small)))
    print(f"play it again: {again}--plan {where} --trace")
    return 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="the first, or the only one (1)")
    parser.add_argument("--virtual-seconds", type=float, default=60.0, help="with faults (60)")
    parser.add_argument("--plan", type=Path, help="a file that --shrink wrote, instead of a seed")
    parser.add_argument("--mutant", metavar="NAME", help="plant this mistake: see --mutants")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--minutes", type=float, help="world after world, for so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes for many worlds (1)")
    parser.add_argument(
        "--healthy-hours", type=int, metavar="HOURS", help="no faults, a rolling restart each hour"
    )
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="all, or those that are named")
    parser.add_argument("--statements", type=int, metavar="WORLDS", help="count what they execute")
    parser.add_argument("--missing", action="store_true", help="and name the lines they do not")
    parser.add_argument("--same-as", type=Path, metavar="DIR", help="a compiled tree")
    parser.add_argument("--worlds", type=int, default=8, help="for --same-as (8)")
    parser.add_argument("--footprints", type=int, metavar="WORLDS", help="what --same-as compares")
    parser.add_argument("--write-docs", action="store_true", help="publish what is kept")
    parser.add_argument("--shrink", action="store_true", help="find a smaller world that fails")
    options = parser.parse_args(arguments)
    if options.write_docs:
        write_page()
        return 0
    wanted = (options.mutants, options.mutant, options.statements)
    if is_compiled() and any(each is not None for each in wanted):
        print(_NOT_COMPILED, file=sys.stderr)
        return 2
    if options.same_as is not None:
        return _compare(options)
    if options.footprints is not None:
        seeds = range(options.seed, options.seed + options.footprints)
        for line in footprints(seeds, options.virtual_seconds):
            print(line, flush=True)
        return 0
    if options.minutes is not None:
        total = run_long(options.seed, options.minutes, options.virtual_seconds, options.jobs)
        keep_long(total)
        print(f"{described()}: {total.described()}")
        return 1 if total.violations else 0
    if options.healthy_hours is not None:
        run = run_healthy(options.seed, options.healthy_hours, partial(print, flush=True))
        keep_healthy(run)
        print(f"{described()}: {run.described()}")
        for violation in run.violations:
            print(f"VIOLATION: {violation}")
        return 1 if run.violations else 0
    if options.mutants is not None:
        return _hunt(options.mutants, options.jobs)
    if options.statements is not None:
        return _count_statements(options)
    try:
        mutant = find(options.mutant) if options.mutant else None
        plan = _plan(options, mutant)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    again = f"python -m sim {f'--mutant {mutant.name} ' if mutant is not None else ''}"
    with planted(mutant) if mutant is not None else nullcontext():
        if options.shrink:
            return _shrink(plan, Path(f"sim-{plan.seed}.json"), again)
        began = time.perf_counter()
        world, failure = run_one(plan, trace=options.trace)
    for line in world.lines or ():
        print(line)
    print(_describe(world, failure, time.perf_counter() - began))
    if failure is not None and not options.trace:
        print(f"see it happen: {again}--seed {plan.seed} --trace; smaller: --shrink")
    return 1 if failure is not None else 0


def _plan(options: argparse.Namespace, mutant: Mutant | None) -> Plan:
    """Raises ValueError, OSError."""
    if options.plan is not None:
        return msgspec.json.decode(options.plan.read_bytes(), type=Plan)
    if mutant is not None and mutant.faults is None:
        raise ValueError(
            f"chance does not show {mutant.name}, a script does: "
            f"python -m sim --mutants {mutant.name}"
        )
    if mutant is not None:
        return plan_for(mutant, options.seed)
    return Plan.draw(options.seed, options.virtual_seconds)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of strings must not differ from run to run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "sim", *sys.argv[1:]])
    logging.getLogger("moldau").addHandler(logging.NullHandler())
    logging.getLogger("moldau").propagate = False
    sys.exit(main())
