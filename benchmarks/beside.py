"""What is compared with Apache Kafka: the rows, and the ratios that are aimed at.

A row is one load on one broker or on three, with a flush policy; its figures are kept under
`beside.BROKERS.FLUSH.ROW.SIDE`, and its ratios to Kafka under the key of our side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from benchmarks.apache_kafka import FLUSHES

METRICS = "beside."
STEADY = f"{METRICS}steady"
"""Whether Kafka's rate was steady when a load began to count, one value for each load."""
KAFKA = "kafka"
OURS = "moldau"
COMPILED = "compiled"
PARTITIONS = 6
SHAPE_PARTITIONS = 16
MB = 1_000_000


class Unit(Enum):
    """What a row is read by."""

    MB = "MB/s"
    MESSAGES = "/s"
    TRANSACTIONS = "transactions/s"
    LATENCY = "µs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load, and by how much it is to be faster than Kafka's.

    `count` is of messages, in a full run and in a quick one, on one broker; a cluster on the same
    machine takes a part of it. `is_filled` loads read what another load has written before.
    """

    key: str
    name: str
    kind: str
    unit: Unit
    spec: dict[str, Any]
    count: tuple[int, int] = (0, 0)
    on_first: bool = False
    is_filled: bool = False
    flushes: tuple[str, ...] = FLUSHES
    rate_min: float = 1.5
    p50_max: float | None = None
    p99_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row on so many brokers with a policy."""

    row: Row
    brokers: int
    flush: str

    @property
    def metric(self) -> str:
        return f"{METRICS}{self.brokers}.{self.flush}.{self.row.key}"

    @property
    def name(self) -> str:
        where = "one broker" if self.brokers == 1 else "three brokers"
        return f"{where}, flush={self.flush}: {self.row.name}"


_SIZES = {1024: "1 KiB", 100: "100 B"}


def _messages(size: int, full_mb: int, quick_mb: int) -> tuple[int, int]:
    return full_mb * MB // size, quick_mb * MB // size


def _produce(size: int, batch: str, full_mb: int, quick_mb: int, unit: Unit) -> Row:
    batch_bytes = {"1MB": MB, "16KB": 16_384}[batch]
    return Row(
        key=f"produce.{size}.{batch}",
        name=f"produce {_SIZES[size]}, {batch[:-2]} {batch[-2:]} batches",
        kind="kafka-produce",
        unit=unit,
        spec={"size": size, "batch_bytes": batch_bytes},
        count=_messages(size, full_mb, quick_mb),
    )


def _transactions(producers: int) -> Row:
    return Row(
        key=f"transactions.{producers}",
        name=f"transactions of 100 messages, {producers} producer{'s' * (producers > 1)}",
        kind="kafka-transactions",
        unit=Unit.TRANSACTIONS,
        spec={"producers": producers},
        rate_min=3,
    )


def _consume(size: int, full_mb: int, quick_mb: int, unit: Unit) -> Row:
    return Row(
        key=f"consume.{size}",
        name=f"consume {_SIZES[size]}",
        kind="kafka-raw-fetch",
        unit=unit,
        # One pass takes a tenth of a second, in which chance decides.
        spec={"size": size, "passes": 8},
        count=_messages(size, full_mb, quick_mb),
        on_first=True,
        is_filled=True,
        # What a reader gets has been written: no policy matters.
        flushes=("never",),
    )


ROWS = (
    _produce(1024, "1MB", 400, 100, Unit.MB),
    _produce(1024, "16KB", 300, 30, Unit.MB),
    _produce(100, "16KB", 150, 15, Unit.MESSAGES),
    Row(
        key="small",
        name="100 B requests, 8 connections × 5",
        kind="kafka-raw-small",
        unit=Unit.MESSAGES,
        spec={"size": 100, "connections": 8, "in_flight": 5},
        count=(100_000, 10_000),
        on_first=True,
        rate_min=3,
    ),
    Row(
        key="lone",
        name="100 B, one at a time",
        kind="kafka-raw-latency",
        unit=Unit.LATENCY,
        spec={"size": 100},
        count=(10_000, 1_000),
        on_first=True,
        p50_max=0.7,
        p99_max=0.5,
    ),
    _consume(1024, 400, 60, Unit.MB),
    _consume(100, 150, 15, Unit.MESSAGES),
    _transactions(1),
    _transactions(8),
)

KEYED = Row(
    key="keyed",
    name=f"50 producers, keys on {SHAPE_PARTITIONS} partitions, 100 to 1,024 B, linger 1 ms",
    kind="kafka-keyed",
    unit=Unit.MESSAGES,
    spec={
        "producers": 50,
        "size_min": 100,
        "size_max": 1024,
        "linger_ms": 1,
        "chunk": 25,
        "pending_max": 250,
    },
    count=(300_000, 60_000),
)
DRAIN = Row(
    key="drain",
    name="a backlog in 16 KB batches read by 4 readers while 2,000 messages/s are produced",
    kind="kafka-drain",
    unit=Unit.MB,
    spec={
        "size": 1024,
        "batch_bytes": 16_384,
        "producers": 10,
        "size_min": 100,
        "size_max": 1024,
        "rate": 2_000,
        "readers": 4,
    },
    count=_messages(1024, 800, 80),
    on_first=True,
    is_filled=True,
    flushes=("never",),
)
COLD = Row(
    key="cold",
    name="the same read by one reader, from the disk (page cache dropped)",
    kind="kafka-fetch-cold",
    unit=Unit.MB,
    spec={"size": 1024},
    count=_messages(1024, 400, 80),
    on_first=True,
    is_filled=True,
    flushes=("never",),
)
PACED = Row(
    key="paced",
    name="10 producers with keys, 5,000 messages/s of 100 to 1,024 B, linger 1 ms",
    kind="kafka-paced",
    unit=Unit.LATENCY,
    spec={"producers": 10, "size_min": 100, "size_max": 1024, "linger_ms": 1, "rate": 5_000},
)
SHAPES = (KEYED, DRAIN, COLD, PACED)


def cases(rows: tuple[Row, ...], brokers: tuple[int, ...]) -> list[Case]:
    return [
        Case(row=row, brokers=number, flush=flush)
        for number in brokers
        for flush in FLUSHES
        for row in rows
        if flush in row.flushes
    ]


CASES = cases(ROWS, (1, 3))
SHAPE_CASES = cases(SHAPES, (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A ratio of ours to Kafka's that is to be reached, or not to be exceeded."""

    name: str
    ratio: str
    limit: float
    at_least: bool = field(default=False)


def aims(case: Case) -> Iterator[Aim]:
    row = case.row
    if row.unit is not Unit.LATENCY:
        yield Aim(name=case.name, ratio="ratio", limit=row.rate_min, at_least=True)
    if row.p50_max is not None:
        yield Aim(name=f"{case.name}: p50", ratio="p50_ratio", limit=row.p50_max)
    if row.p99_max is not None:
        yield Aim(name=f"{case.name}: p99", ratio="p99_ratio", limit=row.p99_max)
