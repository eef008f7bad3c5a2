"""The sides of the comparison with Apache Kafka, and the topics and warm-up they have in common.

A side is a way to run one broker, or three, with a flush policy. Another column of the report is
one more entry in `VARIANTS`, with what makes it.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import servers
from benchmarks.apache_kafka import Distribution, kafka
from benchmarks.bench import TOPIC_SECONDS_MAX, Target
from benchmarks.beside import COMPILED, KAFKA, OURS
from benchmarks.cluster import cluster
from benchmarks.harness import ROOT, BenchmarkError, Sample, free_port, run_client
from release.hot_path import TREE

WINDOWS = 3
WINDOW_SECONDS = 2.0
WINDOW_SPREAD = 0.1
"""Warm: the slowest of three windows in a row is at most a tenth below the fastest."""

LEADERS_SECONDS_MAX = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server of a side that takes requests, and where its data is."""

    target: Target
    data_dirs: list[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """`start(directory, flush, brokers)` is a context; figures are kept under `key`."""

    key: str
    name: str
    start: Callable[[Path, str, int], AbstractContextManager[Started]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run our brokers: `settings` are keys without the prefix of their variables."""

    key: str
    name: str
    settings: dict[str, str] = field(default_factory=dict)
    packages: Path | None = None
    """The folder of another `moldau` than that of this checkout's source."""

    def side(self) -> Side:
        return Side(key=self.key, name=self.name, start=self._start)

    @contextlib.contextmanager
    def _start(self, directory: Path, flush: str, brokers: int) -> Iterator[Started]:
        name = f"{self.key}-{brokers}-{flush}"
        if brokers == 1:
            # Coordinators need addresses that are known before the start.
            own = {key: f"127.0.0.1:{free_port()}" for key in ("RAFT__ADDR", "HTTP__ADDR")}
            settings = {f"MOLDAU_{key}": value for key, value in (own | self.settings).items()}
            settings |= self._python_path()
            with servers.moldau(directory, flush=flush, name=name, settings=settings) as one:
                yield Started(target=one, data_dirs=[directory / f"{name}-data"])
        else:
            with (
                # The brokers of a cluster inherit it.
                patch.dict(os.environ, self._python_path()),
                cluster(directory, flush=flush, name=name, settings=self.settings) as three,
            ):
                dirs = [broker.data_dir for broker in three.cluster.brokers]
                yield Started(target=three, data_dirs=dirs)

    def _python_path(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.packages)} if self.packages else {}


VARIANTS = (
    Variant(key=OURS, name="Moldau"),
    Variant(key=COMPILED, name="Moldau, compiled", packages=TREE),
)


def ours(variants: Sequence[Variant] = VARIANTS, source: Path = ROOT / "src") -> list[Variant]:
    """Those that can be run now: what was compiled must not be older than its source."""
    return [one for one in variants if one.packages is None or _is_fresh(one.packages, source)]


def _is_fresh(packages: Path, source: Path) -> bool:
    if not packages.is_dir():
        return False
    made = packages.stat().st_mtime
    return all(path.stat().st_mtime <= made for path in source.rglob("*.py"))


def kafka_side(found: Distribution) -> Side:
    @contextlib.contextmanager
    def start(directory: Path, flush: str, brokers: int) -> Iterator[Started]:
        with kafka(found, directory, flush=flush, brokers=brokers) as running:
            yield Started(target=running, data_dirs=running.data_dirs)

    return Side(key=KAFKA, name=f"Apache Kafka {found.version}", start=start)


# --- topics ---------------------------------------------------------------------------------------


def placement(partitions: int, brokers: int, *, on_first: bool) -> list[list[int]]:
    """The replicas of each partition, the leader first: in turns, or broker 1 leads them all."""
    numbers = list(range(1, brokers + 1))
    if on_first:
        return [numbers] * partitions
    turns = [at % brokers for at in range(partitions)]
    return [numbers[turn:] + numbers[:turn] for turn in turns]


@contextlib.contextmanager
def placed_topic(
    running: Target, partitions: int, brokers: int, *, on_first: bool = False
) -> Iterator[str]:
    """A topic whose leaders are where they are on the other side; deleted afterwards."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"bench-{uuid.uuid4().hex[:8]}"
    replicas = placement(partitions, brokers, on_first=on_first)
    admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
    seconds = TOPIC_SECONDS_MAX
    wanted = NewTopic(name, partitions, replica_assignment=replicas)
    created = admin.create_topics([wanted], operation_timeout=seconds, request_timeout=seconds)
    try:
        created[name].result(seconds)
        _await_leaders(admin, name, [each[0] for each in replicas])
    except (KafkaException, TimeoutError) as error:
        raise BenchmarkError(f"{running.server.name}: no topic: {error}") from error
    try:
        yield name
    finally:
        gone = admin.delete_topics([name], operation_timeout=seconds, request_timeout=seconds)
        try:
            gone[name].result(seconds)
        except (KafkaException, TimeoutError) as error:
            raise BenchmarkError(f"{running.server.name}: {name} stays: {error}") from error


def _await_leaders(admin: Any, name: str, wanted: Sequence[int]) -> None:
    deadline = time.perf_counter() + LEADERS_SECONDS_MAX
    while True:
        partitions = admin.list_topics(name, timeout=10).topics[name].partitions
        leaders = [partitions[at].leader for at in sorted(partitions)]
        if leaders == list(wanted):
            return
        if time.perf_counter() > deadline:
            raise BenchmarkError(f"leaders of {name} are {leaders}, not {list(wanted)}")
        time.sleep(0.1)


# --- warming up -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How long a load is taken before it counts: to the minimum, and then until it is steady."""

    seconds_min: float
    seconds_max: float


QUICK = WarmUp(seconds_min=0, seconds_max=3)
"""Kafka stays cold: the figures show that the load works, and no more."""


def warming(brokers: int, *, is_first: bool) -> WarmUp:
    """Three JVMs on one machine compile slowly; most of what a broker does is in its first load."""
    seconds = 20.0 if brokers == 1 else 40.0
    return WarmUp(seconds_min=seconds if is_first else 0, seconds_max=1.5 * seconds)


def is_steady(rates: Sequence[float]) -> bool:
    last = rates[-WINDOWS:]
    return len(last) == WINDOWS and min(last) >= (1 - WINDOW_SPREAD) * max(last)


def warm_up(load: Callable[[], Sample], limits: WarmUp) -> list[float]:
    """Run a load until the rates of windows are steady. Returns the rate of each window.

    Java compiles while it runs what is used often: the first seconds of a broker are no measure.
    A load may be over in a quarter of a second, in which chance decides: a window holds several.
    """
    rates: list[float] = []
    spent = 0.0
    while spent < limits.seconds_min or not (is_steady(rates) or spent >= limits.seconds_max):
        wall, messages = 0.0, 0
        while wall < WINDOW_SECONDS and (not wall or spent + wall < limits.seconds_max):
            sample = load()
            wall, messages = wall + sample.wall_s, messages + sample.messages
        spent += wall
        rates.append(messages / wall)
    return rates


def sample_of(kind: str, running: Target, spec: dict[str, Any]) -> Sample:
    """One load of which no figure is kept."""
    full = {"port": running.port, "bootstrap": running.bootstrap, **spec}
    return run_client(kind, full, running.server)
