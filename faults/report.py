"""Owns what is published of the runs: a line each, and the measured part of docs/reliability.md."""

import os
import platform
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.catalogue import Scenario
from faults.checker import Anomaly
from faults.measures import spread
from faults.run import ROOT, Result

DOCS_PATH: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- measured: written by python -m faults --write-docs -->"
END: Final = "<!-- /measured -->"
_LOSSES = (Anomaly.LOST, Anomaly.UNSEEN)
_ORDER = (Anomaly.REORDERED, Anomaly.NONMONOTONIC, Anomaly.SKIPPED, Anomaly.BACKWARDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A scenario and what came of it."""

    scenario: Scenario
    missing: str = ""
    result: Result | None = None

    @property
    def status(self) -> str:
        if self.result is None:
            return self.missing
        return "passed" if self.result.passed else "FAILED"


def _count(result: Result, anomalies: Sequence[Anomaly]) -> int:
    return sum(result.verdict.count(anomaly) for anomaly in anomalies)


def _silence(result: Result) -> str:
    found = spread(result.unavailable_seconds)
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
        f"unavailable p50/p99/max {_silence(result)} s"
    )
    details = [f"problem: {text}" for text in result.problems]
    details += [f"proof: {text}" for text in _short(result.proofs)]
    details += [f"note: {text}" for text in result.notes]
    return "\n".join([head, *(textwrap.indent(text, " " * 10) for text in details)])


def _short(texts: Sequence[str]) -> list[str]:
    """The same text many times is said once."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return [text if count == 1 else f"{text} (×{count})" for text, count in counts.items()]


def markdown(all_played: Sequence[Played]) -> str:
    """The tables."""
    rows = [
        "| # | scenario | expected | result | faults | sends | acked | lost | duplicates "
        "| out of order | unavailable s (p50 / p99 / max) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for played in all_played:
        scenario, result = played.scenario, played.result
        cells = [scenario.name, scenario.title, scenario.expected, played.status]
        if result is None:
            cells += [""] * 7
        else:
            verdict = result.verdict
            cells += [
                str(result.faults),
                f"{verdict.sends:,}",
                f"{verdict.acked:,}",
                str(_count(result, _LOSSES)),
                str(verdict.count(Anomaly.DUPLICATE)),
                str(_count(result, _ORDER)),
                _silence(result),
            ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", *_recoveries(all_played), "", *_proofs(all_played)]).strip()


def _recoveries(all_played: Sequence[Played]) -> list[str]:
    """Starts after a fault, by the size of the data; the slowest of each size."""
    slowest: dict[int, float] = {}
    for played in all_played:
        for size, seconds in played.result.recoveries if played.result else []:
            bucket = max(1, size >> 20).bit_length()
            slowest[bucket] = max(slowest.get(bucket, 0.0), seconds)
    if not slowest:
        return []
    rows = ["| data directory | slowest start after a fault |", "|---|---|"]
    for bucket in sorted(slowest):
        rows.append(f"| under {1 << bucket} MiB | {slowest[bucket]:.2f} s |")
    return rows


def _proofs(all_played: Sequence[Played]) -> list[str]:
    rows = []
    for played in all_played:
        if played.result is not None:
            told = "; ".join(_short(played.result.proofs) + played.result.notes)
            rows.append(f"- {played.scenario.name}: {told}")
    return ["That the faults fired:", "", *rows] if rows else []


def write_docs(all_played: Sequence[Played], command: str, path: Path = DOCS_PATH) -> None:
    """Replace what stands between the two markers; the rest of the page is written by people."""
    page = path.read_text()
    if BEGIN not in page or END not in page:
        raise ValueError(f"{path} has no markers {BEGIN} and {END}")
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    where = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    head = f"`{command}` on {time.strftime('%Y-%m-%d', time.gmtime())}: {where}, one broker."
    path.write_text(f"{before}{BEGIN}\n\n{head}\n\n{markdown(all_played)}\n\n{END}{after}")
