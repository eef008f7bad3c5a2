"""Lays out one frame of `moldau top` as lines of styled text.

What is shown depends on the figures, on what the user has chosen, and on the size of the terminal;
nothing here reads the clock or the terminal.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from moldau.cli.top.figures import ClusterFigures, TopicFigures
from moldau.cli.top.tables import GAP, RAFT, VIEWS, Fit, View, column_of, fitted, sorted_rows
from moldau.cli.top.units import byte_rate, count, duration, sparkline

if TYPE_CHECKING:
    from rich.text import Text

WIDTH_MIN: Final = 40
_HISTORY_MAX: Final = 120
_SUMMARY_LINES_MAX: Final = 3
_REMEDIES_MAX: Final = 2
_HEALTH_STYLES: Final = {
    "healthy": "bold green",
    "degraded": "bold yellow",
    "unavailable": "bold red",
    "unreachable": "bold red",
}
_KEYS: Final = (
    "1-6 view",
    "q quit",
    "s sort",
    "r reverse",
    "↑↓ scroll",
    "space pause",
    "a internal topics",
)


@dataclass(slots=True)
class Choices:
    """What the user has chosen."""

    view: int = 0
    sort: dict[str, str] = field(default_factory=dict)
    """The title of the column, by view."""
    is_reversed: bool = False
    shows_internal: bool = False
    first_row: int = 0
    is_paused: bool = False

    @property
    def current(self) -> View[Any]:
        return VIEWS[self.view]


@dataclass(slots=True)
class History:
    """Throughput of the last frames."""

    written: list[float | None] = field(default_factory=list)
    read: list[float | None] = field(default_factory=list)

    def add(self, figures: ClusterFigures) -> None:
        for values, value in (
            (self.written, figures.written_bytes),
            (self.read, figures.read_bytes),
        ):
            values.append(value)
            del values[:-_HISTORY_MAX]


@dataclass(frozen=True, slots=True)
class Frame:
    """What one frame is made of."""

    figures: ClusterFigures
    choices: Choices
    history: History
    width: int
    height: int | None = None
    """None: as many lines as there are rows."""
    interval: float | None = None
    """None: this is not live."""
    note: str = ""

    def lines(self) -> "list[Text]":
        width = max(WIDTH_MIN, self.width)
        head = [self._title(width), *self._health(width), *self._facts(width), self._tabs(width)]
        foot = [] if self.interval is None else [self._footer(width)]
        room = None if self.height is None else max(2, self.height - len(head) - len(foot))
        body = list(self._table(width, room))
        if room is not None and foot:
            body += [_text("")] * (room - len(body))
        lines = [*head, *body, *foot]
        for line in lines:
            line.rstrip()
        return lines

    # ---- head

    def _title(self, width: int) -> "Text":
        left = f"moldau top  cluster {self.figures.cluster_id}"
        right = time.strftime("%H:%M:%S", time.localtime(self.figures.at))
        if self.interval is not None:
            right += "  paused" if self.choices.is_paused else f"  every {self.interval:g} s"
        left = _cut(left, width - len(right) - 2)
        return _text(f"{left}{right:>{width - len(left)}}", "bold")

    def _health(self, width: int) -> "list[Text]":
        import textwrap

        figures = self.figures
        style = _HEALTH_STYLES[figures.health]
        lines = textwrap.wrap(
            f"{figures.health}: {figures.summary}",
            width,
            max_lines=_SUMMARY_LINES_MAX,
            placeholder=" …",
        )
        found = [_text(line) for line in lines]
        found[0].stylize(style, 0, len(figures.health))
        remedies = list(dict.fromkeys(each["remedy"] for each in figures.problems))
        for remedy in [each for each in remedies if each][:_REMEDIES_MAX]:
            found.append(_text(_cut(f"remedy: {remedy}", width), "cyan"))
        if self.note:
            found.append(_text(_cut(self.note, width), "yellow"))
        return found

    def _facts(self, width: int) -> "Iterator[Text]":
        figures = self.figures
        if self.choices.current is RAFT:
            causes = ", ".join(
                f"{cause} {count(number)}" for cause, number in figures.election_causes.items()
            )
            yield _text(_cut(f"Elections since the start: {causes or '–'}", width))
        if self.choices.view:
            return
        for title, size, records, values in (
            ("In", figures.written_bytes, figures.written_records, self.history.written),
            ("Out", figures.read_bytes, figures.read_records, self.history.read),
        ):
            line = f"{title:<8}{byte_rate(size):>12} {count(records):>8} records/s  "
            yield _text(line + sparkline(values, min(_HISTORY_MAX, width - len(line))))
        produce = _pair(figures.produce_p50_seconds, figures.produce_p99_seconds)
        commit = _pair(figures.commit_p50_seconds, figures.commit_p99_seconds)
        yield _text(_cut(f"Produce {produce}    Commit {commit}", width))
        lag = f"{count(figures.lag_records)} records, {duration(figures.lag_seconds)}"
        queues = (
            f"{count(figures.queue_ready)} ready, {count(figures.queue_leased)} leased, "
            f"{count(figures.queue_delayed)} delayed, {count(figures.queue_dead)} dead"
        )
        yield _text(_cut(f"Lag     {lag}    Queues {queues}", width))
        partitions = (
            f"Parts   {count(figures.partitions)} partitions, "
            f"{count(figures.under_replicated)} under-replicated, "
            f"{count(figures.leaderless)} without a leader"
        )
        yield _text(
            _cut(partitions, width),
            "red" if figures.leaderless else "yellow" if figures.under_replicated else "",
        )

    def _tabs(self, width: int) -> "Text":
        line = _text("")
        for number, view in enumerate(VIEWS):
            is_current = number == self.choices.view
            name = f" {number + 1} {view.name} "
            line.append(name, "reverse bold" if is_current else "dim")
        line.truncate(width)
        return line

    # ---- table

    def _table(self, width: int, room: int | None) -> "Iterator[Text]":
        view = self.choices.current
        column = column_of(view, self.choices.sort.get(view.name, view.sort))
        rows = [row for row in view.rows(self.figures) if self._is_shown(row)]
        if not rows:
            yield _text(_cut(view.if_empty, width), "dim")
            return
        rows = sorted_rows(rows, column, reverse=self.choices.is_reversed)
        fits = fitted(view.columns, rows, width, sorted_by=column.title)
        yield self._heads(fits, column.title)
        first, last = self._window(len(rows), room)
        for index in range(first, last):
            yield _line(fits, rows[index], index)
        if last - first < len(rows):
            more = f"rows {first + 1} to {last} of {len(rows)}"
            yield _text(_cut(more, width), "dim")

    def _is_shown(self, row: object) -> bool:
        return self.choices.shows_internal or not (isinstance(row, TopicFigures) and row.internal)

    def _window(self, count_all: int, room: int | None) -> tuple[int, int]:
        if room is None or count_all <= room - 1:
            return 0, count_all
        # A line for the titles, and one that says that there is more.
        shown = max(1, room - 2)
        first = min(self.choices.first_row, count_all - shown)
        return first, first + shown

    def _heads(self, fits: "Sequence[Fit[Any]]", sorted_by: str) -> "Text":
        line = _text("")
        mark = "▲" if self.choices.is_reversed else "▼"
        for number, each in enumerate(fits):
            title = each.column.title
            is_sorted = title == sorted_by
            shown = f"{title}{mark}" if is_sorted else title
            cell = _text(_aligned(shown, each), "bold")
            if is_sorted:
                # Not the blanks before it.
                cell.highlight_words([shown], "underline")
            line.append(" " * GAP * bool(number))
            line.append_text(cell)
        return line

    def _footer(self, width: int) -> "Text":
        shown = ""
        for key in _KEYS:
            longer = f"{shown} · {key}" if shown else key
            if len(longer) > width:
                break
            shown = longer
        return _text(shown, "dim")


def _line(fits: "Sequence[Fit[Any]]", row: object, index: int) -> "Text":
    line = _text("")
    for number, each in enumerate(fits):
        line.append(" " * GAP * bool(number))
        style = each.column.style(row) if each.column.style else ""
        line.append(_aligned(_cut(each.cells[index], each.width), each), style)
    return line


def _aligned(text: str, fit: "Fit[Any]") -> str:
    return text.rjust(fit.width) if fit.column.right else text.ljust(fit.width)


def _pair(p50: float | None, p99: float | None) -> str:
    return f"p50 {duration(p50)}, p99 {duration(p99)}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="")
