"""What is published of the runs: a line each, and the measured part of docs/reliability.md.

Results are kept in .faults/ beside the code, one file per size of the cluster, so that scenarios
can be played a few at a time; the page is written from all that is kept.
"""

import json
import os
import platform
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from faults.catalogue import BY_BROKERS, Scenario
from faults.checker import Anomaly
from faults.measures import spread
from faults.run import ROOT, Result

DOCS_PATH: Final = ROOT / "docs" / "reliability.md"
RESULTS_PATH: Final = ROOT / ".faults"
BEGIN: Final = "<!-- measured: written by python -m faults --write-docs -->"
END: Final = "<!-- /measured -->"
_LOSSES = (Anomaly.LOST, Anomaly.UNSEEN)
_ORDER = (
    Anomaly.REORDERED,
    Anomaly.NONMONOTONIC,
    Anomaly.SKIPPED,
    Anomaly.BACKWARDS,
    Anomaly.UNCOMMITTED,
)
_NOT_RUN: Final = "not run"
_SIZES: Final = {1: "One broker", 3: "Three brokers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A scenario and what came of it."""

    scenario: Scenario
    missing: str = ""
    result: Result | None = None
    quick: bool = False

    @property
    def status(self) -> str:
        if self.result is None:
            return f"{_NOT_RUN}: {self.missing}"
        return "passed" if self.result.passed else "FAILED"


@dataclass(slots=True, kw_only=True)
class Row:
    """The same as it is kept and published."""

    name: str
    status: str
    quick: bool = False
    date: str = ""
    faults: int = 0
    sends: int = 0
    acked: int = 0
    lost: int = 0
    duplicates: int = 0
    disorder: int = 0
    unavailable: list[float] = field(default_factory=list)
    recoveries: list[list[float]] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)


def row_of(played: Played) -> Row:
    row = Row(
        name=played.scenario.name,
        status=played.status,
        quick=played.quick,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )
    result = played.result
    if result is not None:
        verdict = result.verdict
        row.faults, row.sends, row.acked = result.faults, verdict.sends, verdict.acked
        row.lost = _count(result, _LOSSES)
        row.duplicates = verdict.count(Anomaly.DUPLICATE)
        row.disorder = _count(result, _ORDER)
        row.unavailable = [round(seconds, 3) for seconds in result.unavailable_seconds]
        row.recoveries = [[size, round(seconds, 3)] for size, seconds in result.recoveries]
        row.reported = _short(result.proofs) + _short(result.notes)
    return row


def _count(result: Result, anomalies: Sequence[Anomaly]) -> int:
    return sum(result.verdict.count(anomaly) for anomaly in anomalies)


def _silence(seconds: Sequence[float]) -> str:
    found = spread(seconds)
    return f"{found.p50:.1f} / {found.p99:.1f} / {found.max:.1f}" if found else "–"


def line(played: Played) -> str:
    """For the terminal: what happened, and why it failed if it did."""
    scenario, result = played.scenario, played.result
    head = f"{scenario.name:>8}  {scenario.title}: {played.status}"
    if result is None:
        return head
    verdict = result.verdict
    head += (
        f" in {result.seconds:.0f} s; sends {verdict.sends}, acked {verdict.acked}, "
        f"lost {_count(result, _LOSSES)}, duplicates {verdict.count(Anomaly.DUPLICATE)}, "
        f"unavailable p50/p99/max {_silence(result.unavailable_seconds)} s"
    )
    details = [f"problem: {text}" for text in result.problems]
    details += [f"proof: {text}" for text in _short(result.proofs)]
    details += [f"note: {text}" for text in _short(result.notes)]
    return "\n".join([head, *(textwrap.indent(text, " " * 10) for text in details)])


def _short(texts: Sequence[str]) -> list[str]:
    """The same text many times is said once."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return [text if count == 1 else f"{text} (×{count})" for text, count in counts.items()]


def markdown(scenarios: Sequence[Scenario], rows: dict[str, Row]) -> str:
    """The tables of one size."""
    lines = [
        "| # | scenario | expected | result | faults | sends | acked | lost | duplicates "
        "| out of order | unavailable s (p50 / p99 / max) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario in scenarios:
        row = rows.get(scenario.name)
        cells = [scenario.name, scenario.title, scenario.expected]
        if row is None or row.status.startswith(_NOT_RUN):
            cells += [row.status if row else _NOT_RUN, *[""] * 7]
        else:
            cells += [
                f"{row.status}{' (few repetitions)' if row.quick else ''}",
                str(row.faults),
                f"{row.sends:,}",
                f"{row.acked:,}",
                str(row.lost),
                str(row.duplicates),
                str(row.disorder),
                _silence(row.unavailable),
            ]
        lines.append("| " + " | ".join(cells) + " |")
    played = [rows[s.name] for s in scenarios if s.name in rows]
    lines += ["", _total(played), "", *_recoveries(played), "", *_proofs(played)]
    return "\n".join(lines).strip()


def _total(rows: Sequence[Row]) -> str:
    held = [row for row in rows if not row.name.startswith("control")]
    return (
        f"All of them but the controls: {sum(row.sends for row in held):,} sends, "
        f"{sum(row.acked for row in held):,} acknowledged, "
        f"{sum(row.lost for row in held):,} of those lost, "
        f"{sum(row.duplicates for row in held):,} duplicates, "
        f"{sum(row.disorder for row in held):,} out of order."
    )


def _recoveries(rows: Sequence[Row]) -> list[str]:
    """Starts after a fault, by the size of the data; the slowest of each size."""
    slowest: dict[int, float] = {}
    for row in rows:
        for size, seconds in row.recoveries:
            bucket = max(1, int(size) >> 20).bit_length()
            slowest[bucket] = max(slowest.get(bucket, 0.0), seconds)
    if not slowest:
        return []
    lines = ["| data directory | slowest start after a fault |", "|---|---|"]
    for bucket in sorted(slowest):
        lines.append(f"| under {1 << bucket} MiB | {slowest[bucket]:.2f} s |")
    return lines


def _proofs(rows: Sequence[Row]) -> list[str]:
    lines = [f"- {row.name}: {'; '.join(row.reported)}" for row in rows if row.reported]
    return ["That the faults fired:", "", *lines] if lines else []


def load_rows(brokers: int, home: Path = RESULTS_PATH) -> dict[str, Row]:
    """What is kept of this size."""
    path = home / f"results-{brokers}.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: Row(**fields) for name, fields in kept.items()}


def keep(brokers: int, played: Played, home: Path = RESULTS_PATH) -> None:
    """Put one result to the others of its size; few repetitions don't replace many."""
    rows = load_rows(brokers, home)
    kept = rows.get(played.scenario.name)
    if played.quick and kept is not None and not kept.quick:
        return
    rows[played.scenario.name] = row_of(played)
    home.mkdir(exist_ok=True)
    text = json.dumps({name: asdict(row) for name, row in rows.items()}, indent=1)
    (home / f"results-{brokers}.json").write_text(text)


def write_docs(path: Path = DOCS_PATH, home: Path = RESULTS_PATH) -> None:
    """Replace what stands between the two markers; the rest of the page is written by people."""
    page = path.read_text()
    if BEGIN not in page or END not in page:
        raise ValueError(f"{path} has no markers {BEGIN} and {END}")
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    where = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    parts = []
    for brokers in sorted(BY_BROKERS, reverse=True):
        rows = load_rows(brokers, home)
        if rows:
            dates = sorted({row.date for row in rows.values()})
            head = f"`python -m faults --brokers {brokers}` on {' to '.join(dates)}: {where}."
            table = markdown(BY_BROKERS[brokers], rows)
            parts.append(f"### {_SIZES[brokers]}\n\n{head}\n\n{table}")
    whole = "\n\n".join(parts)
    path.write_text(f"{before}{BEGIN}\n\n{whole}\n\n{END}{after}")
