"""Parses what /metrics returns, and computes rates from two scrapes of one broker.

A counter that is smaller than before was reset, since the broker has restarted: what it counts now
has happened since then. A series that is new started at zero.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_KNOWN_LABELS: Final = 65_536
"""Label sets that are kept parsed; a broker has some thousands at most."""


Table = dict[tuple[str, ...], float]
"""Values of a metric by the values of some labels."""


class Scrape:
    """The samples of one response: values by metric and label set."""

    __slots__ = ("_series", "at")

    def __init__(self, text: str, at: float) -> None:
        """`at`: seconds of a monotonic clock. Lines that cannot be parsed are left out."""
        self.at = at
        self._series: dict[str, dict[str, float]] = {}
        # Not splitlines: labels may contain other separators.
        for line in text.split("\n"):
            if line and not line.startswith("#"):
                self._add(line)

    def _add(self, line: str) -> None:
        head, brace, rest = line.rpartition("}")
        name, _, labels = head.partition("{") if brace else ("", "", "")
        if not brace:
            name, _, rest = line.partition(" ")
        try:
            # A timestamp may follow.
            value = float(rest.split(maxsplit=1)[0])
        except (ValueError, IndexError):
            return
        if not math.isnan(value):
            self._series.setdefault(name, {})[labels] = value

    def series(self, name: str) -> Mapping[str, float]:
        """The values of a metric by label set, as text; empty if this broker has none."""
        return self._series.get(name, {})

    def table(self, name: str, *labels: str, **where: str) -> Table:
        """Sums of a metric by the values of labels; of the series with the labels `where`."""
        return _table(self.series(name), labels, where)

    def value(self, name: str, **where: str) -> float | None:
        """The sum of a metric's series; None if there is none."""
        return _total(self.series(name), where)


class Span(NamedTuple):
    """Two scrapes of one broker; without the older one nothing is known of rates."""

    old: Scrape | None
    new: Scrape

    @property
    def seconds(self) -> float:
        return 0.0 if self.old is None else self.new.at - self.old.at

    def increases(self, name: str) -> dict[str, float]:
        """How much a counter has grown, by label set."""
        if self.old is None or self.seconds <= 0:
            return {}
        before = self.old.series(name)
        return {
            labels: value - before.get(labels, 0.0) if value >= before.get(labels, 0.0) else value
            for labels, value in self.new.series(name).items()
        }

    def rate(self, name: str, **where: str) -> float | None:
        """Growth per second; None if unknown."""
        grown = _total(self.increases(name), where)
        return None if grown is None else grown / self.seconds

    def rates(self, name: str, *labels: str, **where: str) -> Table:
        """Growth per second by the values of labels."""
        found = _table(self.increases(name), labels, where)
        return {key: grown / self.seconds for key, grown in found.items()}

    def buckets(self, name: str, **where: str) -> dict[float, float]:
        """Of a histogram: how many were added at or below each bound."""
        found = _table(self.increases(f"{name}_bucket"), ("le",), where)
        return {float(bound): grown for (bound,), grown in found.items()}


def added(buckets: Iterable[Mapping[float, float]]) -> dict[float, float]:
    """The histogram of several brokers."""
    found: dict[float, float] = defaultdict(float)
    for each in buckets:
        for bound, count in each.items():
            found[bound] += count
    return dict(found)


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """As histogram_quantile of Prometheus: linear within a bucket; None without observations."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    wanted = share * buckets[bounds[-1]]
    lower = before = 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted and count > before:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - before) / (count - before)
        lower, before = bound, count
    return lower


@lru_cache(_KNOWN_LABELS)
def labels_of(text: str) -> Mapping[str, str]:
    return {name: _unescaped(value) for name, value in _LABEL.findall(text)}


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def _table(series: Mapping[str, float], names: Sequence[str], where: Mapping[str, str]) -> Table:
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for text, value in series.items():
        labels = labels_of(text)
        if _matches(labels, where) and all(name in labels for name in names):
            found[tuple(labels[name] for name in names)] += value
    return dict(found)


def _total(series: Mapping[str, float], where: Mapping[str, str]) -> float | None:
    found = [
        value for text, value in series.items() if not where or _matches(labels_of(text), where)
    ]
    return sum(found) if found else None


def _matches(labels: Mapping[str, str], where: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in where.items())
