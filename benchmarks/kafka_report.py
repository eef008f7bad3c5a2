"""The comparison with Apache Kafka as tables, for docs/performance.md, and shorter for README."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.beside import CASES, KAFKA, METRICS, SHAPE_CASES, STEADY, Case, Unit
from benchmarks.clients.transactions import MESSAGES
from benchmarks.harness import ROOT
from benchmarks.machine import machine
from benchmarks.sides import VARIANTS
from benchmarks.tables import Table, judged, number, replace_between
from benchmarks.targets import verdicts

README_PATH = ROOT / "README.md"
BEGIN = "<!-- beside Apache Kafka: begin -->"
END = "<!-- beside Apache Kafka: end -->"
TITLE = "Moldau beside Apache Kafka"
PERCENTILES = ("p50", "p99", "p999", "max")
README_ROWS = (
    "produce.1024.1MB",
    "produce.1024.16KB",
    "small",
    "lone",
    "consume.1024",
    "transactions.8",
)
"""Of those with flush=never: Kafka's default."""
NOT_MACHINE = ("uvloop", "crc32c", "Redis", "NATS", "RabbitMQ")


def measured_cases(bench: Bench) -> list[Case]:
    return [
        case
        for case in (*CASES, *SHAPE_CASES)
        if bench.value(f"{case.metric}.{KAFKA}.cpu_us_msg") is not None
    ]


def rate(bench: Bench, case: Case, side: str) -> str:
    """What a side reached, in the unit of the row."""
    metric = f"{case.metric}.{side}"
    match case.row.unit:
        case Unit.MB:
            return f"{number(bench.value(f'{metric}.mb_s'))} MB/s"
        case Unit.MESSAGES:
            return f"{number(bench.value(f'{metric}.msg_s'))}/s"
        case Unit.TRANSACTIONS:
            messages = bench.value(f"{metric}.msg_s")
            found = None if messages is None else messages / MESSAGES
            return f"{number(found)} transactions/s"
        case Unit.LATENCY:
            return f"{_percentiles(bench, metric, 'us')} µs"


def _percentiles(bench: Bench, metric: str, suffix: str) -> str:
    found = (bench.value(f"{metric}.{name}_{suffix}") for name in PERCENTILES)
    return " / ".join(number(value) for value in found if value is not None) or "–"


def beside_table(bench: Bench) -> Table:
    """All rows; each of our sides has columns of its own."""
    sides = [one for one in VARIANTS if _is_measured(bench, one.key)]
    columns = ["load, acks=all", "Apache Kafka", "CPU µs/msg"]
    for one in sides:
        columns += [one.name, "CPU µs/msg", "rate ÷ Kafka's", "CPU ÷", "p50 / p99 ÷"]
    table = Table(TITLE, columns)
    for case in measured_cases(bench):
        metric = f"{case.metric}.{KAFKA}"
        row = [case.name, rate(bench, case, KAFKA), number(bench.value(f"{metric}.cpu_us_msg"))]
        for one in sides:
            metric = f"{case.metric}.{one.key}"
            row += [rate(bench, case, one.key), number(bench.value(f"{metric}.cpu_us_msg"))]
            is_rate = case.row.unit is not Unit.LATENCY
            row.append(number(bench.value(f"{metric}.ratio")) if is_rate else "–")
            row.append(number(bench.value(f"{metric}.cpu_ratio")))
            row.append(_percentiles(bench, metric, "ratio"))
        table.rows.append(row)
    return table


def _is_measured(bench: Bench, side: str) -> bool:
    return any(f"{case.metric}.{side}.cpu_us_msg" in bench.values for case in CASES + SHAPE_CASES)


def readme_table(bench: Bench) -> Table:
    """A few rows, with ratios alone."""
    sides = [one for one in VARIANTS if _is_measured(bench, one.key)]
    columns = ["", "Apache Kafka"]
    for one in sides:
        columns += [one.name, "ratio", "CPU per message"]
    table = Table(TITLE, columns)
    for case in measured_cases(bench):
        if case.row.key not in README_ROWS or case.flush != "never":
            continue
        ratio = "ratio" if case.row.unit is not Unit.LATENCY else "p50_ratio"
        where = "one broker" if case.brokers == 1 else "three brokers"
        row = [f"{case.row.name}, {where}", rate(bench, case, KAFKA)]
        for one in sides:
            metric = f"{case.metric}.{one.key}"
            found = (bench.value(f"{metric}.{name}") for name in (ratio, "cpu_ratio"))
            row += [rate(bench, case, one.key), *(f"{number(value)} ×" for value in found)]
        table.rows.append(row)
    return table


def kafka_targets_table(bench: Bench) -> Table:
    found = [one for one in verdicts(bench) if one[0].metric.startswith(METRICS)]
    return judged(bench, "Targets beside Apache Kafka", found)


def warmth(bench: Bench) -> list[str]:
    """What there is to say of how Kafka was warmed up."""
    steady = bench.values.get(STEADY)
    if not steady:
        return []
    if bench.quick:
        return ["--quick leaves Kafka cold: ratios to it flatter ours, and mean nothing."]
    late = len(steady) - int(sum(steady))
    return [
        f"Kafka was warmed up before each of {len(steady)} loads; {late} of them were not yet "
        "steady when the time for that was up."
    ]


def write_kafka_docs(
    bench: Bench,
    command: str,
    notes: Sequence[str],
    path: Path,
    readme: Path = README_PATH,
) -> None:
    """Write both pages, if there is anything to write that may be compared."""
    if not measured_cases(bench):
        return
    if bench.quick:
        print("not written: what --quick measures beside Apache Kafka", file=sys.stderr)
        return
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = {
        key: value for key, value in machine(bench.versions).items() if key not in NOT_MACHINE
    }
    parts = [f"Measured on {today} with `{command}`.", ""]
    parts += [f"- {key}: {value}" for key, value in versions.items()]
    for table in (beside_table(bench), kafka_targets_table(bench)):
        parts += ["", f"### {table.title}", "", *table.markdown()]
    parts += ["", *(f"- {note}" for note in notes)]
    _replace(path, "\n".join(parts))
    short = readme_table(bench)
    if short.rows:
        head = (
            f"Beside Apache Kafka {bench.versions.get('Apache Kafka', '')} (Java "
            f"{bench.versions.get('Java', '')}), in turns on {today}, acks=all, nothing flushed "
            "before the reply (Kafka's default). Latency is p50 / p99; the ratio of latency and of "
            "CPU is better below 1:"
        )
        _replace(readme, "\n".join([head, "", *short.markdown()]))


def _replace(path: Path, text: str) -> None:
    path.write_text(replace_between(path.read_text(), BEGIN, END, text, path.name))
