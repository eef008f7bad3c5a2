"""Owns how far a streaming query is, from what Spark says about its batches.

Rows are counted by offsets where they can be: a batch that is used twice (as `foreachBatch` may)
is counted twice by Spark. A query whose rows are something else than records, such as files that
its tasks wrote, observes (`DataFrame.observe`) their sum as `rows` under the name `moldau`.

The lag is what lies between the end of the last batch and the latest offsets that the source had
reported by then.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import Progress
from moldau.spark.source.positions import Positions

OBSERVED: Final = "moldau"


class _Batch(NamedTuple):
    """What is remembered of the last one."""

    number: int
    rows: int
    seconds: float
    lag: int | None


class QueryProgress:
    """Adds up the batches of one query, each once."""

    def __init__(self) -> None:
        self.rows = 0
        self._last: _Batch | None = None

    def take(self, told: Iterable[Mapping[str, Any]]) -> bool:
        """The progress of batches, oldest first, as in Spark's JSON; True if one was new."""
        is_new = False
        for each in told:
            number = int(each.get("batchId", -1))
            if self._last is not None and number < self._last.number:
                continue
            rows = _rows(each)
            seconds = float(each.get("batchDuration") or 0) / 1000
            if self._last is None or number > self._last.number:
                self.rows += rows
                is_new = True
                self._last = _Batch(number, rows, seconds, _lag(each))
            elif rows > self._last.rows:
                # Spark also tells of a batch that it has not found anything for yet.
                self.rows += rows - self._last.rows
                is_new = True
                self._last = _Batch(number, rows, seconds, _lag(each))
            else:
                self._last = self._last._replace(lag=_lag(each))
        return is_new

    @property
    def batch(self) -> int | None:
        return None if self._last is None else self._last.number

    def progress(self, *, dead_letters: int, is_idle: bool, is_continuous: bool) -> Progress:
        """As those who watch want it. `is_idle`: nothing has happened for a while."""
        last = self._last
        if last is None:
            return Progress(dead_letters=dead_letters)
        rate = last.rows / last.seconds if last.seconds > 0 else None
        ends = not is_continuous and last.lag is not None
        return Progress(
            batch=last.number,
            rows=self.rows,
            rows_total=self.rows + (last.lag or 0) if ends else None,
            rows_per_second=0.0 if is_idle else rate,
            lag=last.lag,
            batch_seconds=last.seconds,
            dead_letters=dead_letters,
        )


def _rows(told: Mapping[str, Any]) -> int:
    observed = (told.get("observedMetrics") or {}).get(OBSERVED)
    if isinstance(observed, Mapping) and "rows" in observed:
        return int(observed["rows"] or 0)
    counted = int(told.get("numInputRows") or 0)
    spans = [_span(source.get("startOffset"), source.get("endOffset")) for source in _sources(told)]
    known = [span for span in spans if span is not None]
    # Offsets also count what is no row, such as marks of transactions.
    return min(counted, sum(known)) if known and len(known) == len(spans) else counted


def _lag(told: Mapping[str, Any]) -> int | None:
    spans = [
        _span(source.get("endOffset"), source.get("latestOffset")) for source in _sources(told)
    ]
    known = [span for span in spans if span is not None]
    return sum(known) if known else None


def _sources(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [source for source in told.get("sources") or () if isinstance(source, Mapping)]


def _span(start: Any, end: Any) -> int | None:
    """How many offsets lie between; None if these are no positions in topics."""
    before, after = _positions(start), _positions(end)
    if before is None or after is None:
        return None
    return sum(
        # A partition that was not known before begins where it begins: at most at its first.
        max(0, offset - before.offsets.get(place, 0))
        for place, offset in after.offsets.items()
    )


def _positions(found: Any) -> Positions | None:
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except json.JSONDecodeError:
            return None
    if not isinstance(found, Mapping) or not found:
        return None
    try:
        return Positions.from_json(found)
    except InvalidArgumentError:
        return None
