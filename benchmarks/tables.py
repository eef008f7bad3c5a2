"""Tables of a report, and their place in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.targets import Target


@dataclass
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def markdown(self) -> list[str]:
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        return lines + ["| " + " | ".join(row) + " |" for row in self.rows]


def number(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def judged(bench: Bench, title: str, found: Sequence[tuple[Target, float, bool]]) -> Table:
    """Targets with what was measured."""
    table = Table(title, ["measurement", "target", "measured", "lowest–highest", ""])
    for target, value, met in found:
        values = bench.values[target.metric]
        table.rows.append(
            [
                target.name,
                target.text,
                f"{number(value)} {target.unit}",
                f"{number(min(values))}–{number(max(values))}",
                "met" if met else "MISSED",
            ]
        )
    return table


def replace_between(page: str, begin: str, end: str, text: str, name: str) -> str:
    """The page with `text` between the markers. Raises ValueError where they are missing."""
    if begin not in page or end not in page:
        raise ValueError(f"{name} has no markers {begin} and {end}")
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n{text}\n{end}{after}"
