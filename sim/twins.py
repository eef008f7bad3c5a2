"""The same worlds, interpreted and compiled: whether compiling changes anything that is done.

A world's footprint is what everybody sent and when, what is on all disks in the end, what happened
in between, and how many events that took. Of one seed it is the same in each tree, or compiled
code does something else than its source says.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from moldau.model.compiled import described
from sim.plan import Plan
from sim.scene import Violation
from sim.world import World

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
PURE: Final = "pure Python"
COMPILED: Final = "compiled"


class TwinError(Exception):
    """The worlds cannot be compared; the text says what to do."""


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a world left."""

    seed: int
    events: int
    pieces: int
    sent: int
    disks: list[int]
    trace: int
    violation: str = ""

    def differences(self, other: "Footprint") -> list[str]:
        """The names of what is not the same."""
        names = self.__struct_fields__
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def footprint(plan: Plan) -> Footprint:
    """Play a world, in this tree."""
    world = World(plan)
    violation = ""
    try:
        world.run()
    except Violation as found:
        violation = str(found)
    return Footprint(
        seed=plan.seed,
        events=world.scheduler.events,
        pieces=world.network.pieces,
        sent=world.network.sent,
        disks=[node.disk.checksum() for node in world.nodes],
        trace=world.trace,
        violation=violation,
    )


def footprints(seeds: range, virtual_seconds: float) -> Iterator[str]:
    """Lines: how the hot path runs in this tree, and each world."""
    yield described()
    for seed in seeds:
        yield msgspec.json.encode(footprint(Plan.draw(seed, virtual_seconds))).decode()


def compare(
    compiled: Path, seeds: range, virtual_seconds: float, report: Callable[[str], None]
) -> bool:
    """Play the worlds in the source tree and in a compiled one, side by side; whether they are the
    same. Raises TwinError."""
    if not (compiled / "moldau").is_dir():
        raise TwinError(f"there is no compiled tree in {compiled}: make compile")
    trees = {PURE: SOURCE, COMPILED: compiled}
    arguments = ["--footprints", str(len(seeds)), "--seed", str(seeds.start)]
    arguments += ["--virtual-seconds", str(virtual_seconds)]
    playing = [
        subprocess.Popen(
            [sys.executable, "-m", "sim", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in trees.values()
    ]
    try:
        for tree, process in zip(trees, playing, strict=True):
            _expect(tree, _line(process))
        is_same = True
        for _ in seeds:
            pure, made = (msgspec.json.decode(_line(each), type=Footprint) for each in playing)
            report(described_pair(pure, made))
            is_same = is_same and pure == made
        return is_same
    finally:
        for process in playing:
            process.kill()
            process.communicate()


def described_pair(pure: Footprint, compiled: Footprint) -> str:
    differences = pure.differences(compiled)
    head = f"seed={pure.seed}: {pure.events} events"
    if not differences:
        found = f"; VIOLATION: {pure.violation}" if pure.violation else ""
        return f"{head}, the same interpreted and compiled{found}"
    return "\n".join(
        [
            f"{head}, NOT the same compiled:",
            *(
                f"  {name}: {getattr(pure, name)}, compiled {getattr(compiled, name)}"
                for name in differences
            ),
            f"see where they part: --seed {pure.seed} --trace, with and without PYTHONPATH",
        ]
    )


def _line(process: "subprocess.Popen[str]") -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise TwinError("a simulation ended early; its errors are above")
    return line.strip()


def _expect(wanted: str, found: str) -> None:
    if wanted == found:
        return
    if wanted == COMPILED:
        raise TwinError("the compiled tree has no libraries for this Python: make compile")
    raise TwinError(f"{SOURCE} does not run interpreted, but {found}: remove its libraries (*.so)")
