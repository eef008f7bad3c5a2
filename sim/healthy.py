"""Long runs without a fault: an hour of work, a rolling restart, and so on, under the checker.

Systems have lost acked records without any fault, and filled memory or disks over days. Nothing of
this shows in a world of a minute.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from sim.node import Node
from sim.plan import Plan
from sim.scene import Violation
from sim.scheduler import START
from sim.world import World

_HOUR: Final = 3600.0
_PAUSE_SECONDS: Final = 5.0
"""Between a broker that is ready again and the next one that is stopped."""
_SAMPLE_HOURS: Final = 6
_WARM_HOURS: Final = 24
"""By then retention deletes as much as is written."""
_GROWTH_MAX: Final = 1.25
_SEGMENTS_BYTES: Final = 1 << 20
"""Of each broker: a log is cut by whole segments, so that the last of each may grow for long."""
_PAGE_BYTES: Final = 4096


class Sample(Struct, frozen=True):
    """What a world takes, at one time."""

    hour: int
    memory_bytes: int
    disk_bytes: int
    """Of all brokers."""
    objects: int


class HealthyRun(Struct):
    """What came of it."""

    hours: int
    restarts: int = 0
    events: int = 0
    acked: int = 0
    cpu_seconds: float = 0.0
    samples: list[Sample] = []
    violations: list[str] = []

    def described(self) -> str:
        rate = self.hours * _HOUR / max(self.cpu_seconds, 1e-9)
        return (
            f"{self.hours} simulated hours ({rate:.0f} x real time), {self.restarts} restarts, "
            f"{self.events} events, {self.acked} acked, {len(self.violations)} violations"
        )


def plan_of(seed: int) -> Plan:
    """Three brokers with little to do; old records are deleted, keys compacted."""
    return Plan(
        seed=seed,
        brokers=3,
        partitions=1,
        producers=1,
        keyed=1,
        pause_seconds=20.0,
        segment_bytes=16 * 1024,
        retention_bytes=64 * 1024,
    )


def run_healthy(seed: int, hours: int, report: Callable[[str], None]) -> HealthyRun:
    """For so many simulated hours."""
    run = HealthyRun(hours)
    began = time.process_time()
    with TemporaryDirectory() as folder:
        world = World(plan_of(seed), histories=Path(folder))
        gc.disable()
        try:
            world.begin()
            for hour in range(1, hours + 1):
                world.run_for(START + hour * _HOUR - world.scheduler.now)
                _restart_all(world, run)
                if hour % _SAMPLE_HOURS == 0:
                    run.samples.append(_sample(world, hour))
                    report(_line(run.samples[-1], world, time.process_time() - began))
            _look_at_growth(run.samples, len(world.nodes) * _SEGMENTS_BYTES)
            world.settle()
            for workload in world.workloads:
                workload.judge()
        except Violation as violation:
            run.violations = [str(violation)]
        finally:
            world.close()
            gc.enable()
    run.events, run.acked = world.scheduler.events, world.scene.counts["acked"]
    run.cpu_seconds = time.process_time() - began
    return run


def _restart_all(world: World, run: HealthyRun) -> None:
    """One broker after the other, as an operator does."""
    for node in world.nodes:
        is_back = partial(_is_back, node, node.starts)
        node.stop()
        world.wait(is_back, f"{node.name} did not come back")
        run.restarts += 1
        world.run_for(_PAUSE_SECONDS)


def _is_back(node: Node, starts: int) -> bool:
    return node.starts > starts and node.is_ready


def _sample(world: World, hour: int) -> Sample:
    gc.collect()
    # Give back what the allocator keeps free: it would look like a slow growth of the brokers.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    disk = sum(node.disk.used_bytes for node in world.nodes)
    return Sample(hour, resident, disk, len(gc.get_objects()))


def _line(sample: Sample, world: World, took: float) -> str:
    return (
        f"hour {sample.hour}: {sample.memory_bytes >> 20} MiB, {sample.objects} objects, "
        f"{sample.disk_bytes >> 10} KiB on disks, {world.scene.counts['acked']} acked, "
        f"{(world.scheduler.now - START) / took:.0f} x"
    )


def _look_at_growth(samples: list[Sample], segments_bytes: int) -> None:
    """Raises Violation if there is more at the end than when it was warm."""
    warm = [sample for sample in samples if sample.hour >= _WARM_HOURS]
    if len(warm) < 2:
        return
    first, last = warm[0], warm[-1]
    for what, before, after, room in (
        ("memory", first.memory_bytes, last.memory_bytes, 0),
        ("objects in memory", first.objects, last.objects, 0),
        ("data on disks", first.disk_bytes, last.disk_bytes, segments_bytes),
    ):
        if after > before * _GROWTH_MAX + room:
            raise Violation(f"{what}: {before} after {first.hour} hours, {after} after {last.hour}")
