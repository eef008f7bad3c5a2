"""One run: its size, its directory, its progress bar and the values it has measured."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import BenchmarkError, Measured, Sample, median, run_client

PARTITIONS = 6
TOPIC_SECONDS_MAX = 90.0
"""A thousand partitions are made and led by then, also on a machine that does other things."""
DISTURBED_SHARE = 0.15
ONCE = ("amqp-consume", "kafka-fetch-cold")
"""Loads that cannot be run again: they take away what they read, or read it into memory."""


class Target(Protocol):
    """Where a load goes: a server, or a cluster."""

    @property
    def server(self) -> Measured: ...

    @property
    def port(self) -> int: ...

    @property
    def bootstrap(self) -> str: ...


@dataclass(kw_only=True)
class Bench:
    """Values are kept per metric, one for each repetition; the report takes their medians."""

    directory: Path
    quick: bool
    repetitions: int = 3
    retries: int = 1
    minutes: float = 2.0
    """How long each server takes the load of the long run."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of what was fetched for this run, by name."""
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    _progress: Progress | None = None
    _task: Any = None

    def scale(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def record(self, metric: str, value: float) -> None:
        self.values[metric].append(value)

    def value(self, metric: str) -> float | None:
        found = self.values.get(metric)
        return median(found) if found else None

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def load(self, metric: str, kind: str, running: Target, **spec: Any) -> Sample:
        """Run a load against a server and keep its figures under `metric`.

        In a full run, when other programs took much of the machine meanwhile, it is run again, as
        often as `retries` says, and the run that was disturbed least counts; unless the load
        cannot be repeated.
        """
        full = {"port": running.port, "bootstrap": running.bootstrap, **spec}
        full["properties"] = getattr(running, "properties", {})
        sample = run_client(kind, full, running.server)
        tries = 0 if self.quick or kind in ONCE else self.retries
        while sample.other_cpu_share > DISTURBED_SHARE and tries > 0:
            tries -= 1
            again = run_client(kind, full, running.server)
            sample = min(sample, again, key=lambda one: one.other_cpu_share)
        self.record(f"{metric}.mb_s", sample.mb_per_s)
        self.record(f"{metric}.msg_s", sample.messages_per_s)
        self.record(f"{metric}.cpu_ms_mb", sample.cpu_ms_per_mb)
        self.record(f"{metric}.cpu_us_msg", sample.cpu_us_per_message)
        self.record(f"{metric}.client_cpu_share", sample.client_cpu_s / sample.wall_s)
        self.record(f"{metric}.server_cpu_share", sample.server_cpu_s / sample.wall_s)
        self.record("other_cpu_share", sample.other_cpu_share)
        for key in ("p50_us", "p99_us", "p999_us", "max_us"):
            if key in sample.detail:
                self.record(f"{metric}.{key}", sample.detail[key])
        return sample

    # --- progress ---

    @contextmanager
    def progress(self, steps: int) -> Iterator[None]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            self._progress = progress
            self._task = progress.add_task("starting", total=steps)
            try:
                yield
            finally:
                self._progress = None

    def step(self, text: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=f"{text:<44}")

    def done(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._task)


@contextmanager
def topic(
    running: Target,
    partitions: int = PARTITIONS,
    *,
    replicas: int = 1,
    led_by: list[int] | None = None,
) -> Iterator[str]:
    """A topic of its own for one load: an old log would make the next load's cache colder.

    `led_by`: the replicas of every partition, the preferred leader first.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"bench-{uuid.uuid4().hex[:8]}"
    properties = getattr(running, "properties", {})
    admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0, **properties})
    if led_by is None:
        wanted = NewTopic(name, partitions, replicas)
    else:
        wanted = NewTopic(name, partitions, replica_assignment=[led_by] * partitions)
    seconds = TOPIC_SECONDS_MAX
    created = admin.create_topics([wanted], operation_timeout=seconds, request_timeout=seconds)
    try:
        created[name].result(seconds)
    except (KafkaException, TimeoutError) as error:
        raise BenchmarkError(f"no topic of {partitions} partitions: {error}") from error
    try:
        yield name
    finally:
        gone = admin.delete_topics([name], operation_timeout=seconds, request_timeout=seconds)
        gone[name].result(seconds)
