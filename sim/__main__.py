"""Owns the command line of the simulation.

python -m sim --seed 7 --trace
python -m sim --seconds 600
"""

import argparse
import logging
import os
import sys
import time

from sim.plan import Plan
from sim.scene import Violation
from sim.scheduler import START
from sim.world import World


def run_one(seed: int, seconds: float, *, trace: bool) -> tuple[World, Violation | None]:
    world = World(Plan.draw(seed, seconds))
    handler: logging.Handler | None = None
    if trace:
        world.lines = []

        class Note(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                running = asyncio_name()
                world.say(running, f"{record.levelname.lower()}: {record.getMessage()}")

        handler = Note()
        root = logging.getLogger("moldau")
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    failure: Violation | None = None
    try:
        world.run()
    except Violation as violation:
        failure = violation
    finally:
        if handler is not None:
            logging.getLogger("moldau").removeHandler(handler)
    return world, failure


def asyncio_name() -> str:
    from asyncio import events

    loop = events._get_running_loop()
    return getattr(loop, "name", "?")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after the other")
    parser.add_argument("--virtual-seconds", type=float, default=60.0)
    parser.add_argument("--trace", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "sim", *sys.argv[1:]])
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        began = time.perf_counter()
        world, failure = run_one(seed, options.virtual_seconds, trace=options.trace)
        took = time.perf_counter() - began
        for line in world.lines or ():
            print(line)
        simulated = world.scheduler.now - START
        print(
            f"seed={seed} brokers={world.plan.brokers} faults={dict(world.counts)} "
            f"events={world.scheduler.events} simulated={simulated:.0f} s in {took:.1f} s "
            f"({simulated / took:.0f}x) acked={world.scene.counts['acked']} "
            f"trace={world.trace:08x}" + (f" VIOLATION: {failure}" if failure else ""),
            flush=True,
        )
        failed += failure is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
