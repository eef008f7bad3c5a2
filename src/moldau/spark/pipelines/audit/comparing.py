"""Owns the comparison of rows one by one, where sums say that two sides differ.

All of it works on one bucket at a time, so that what a task holds is bounded, and on arrays.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np

from moldau.spark.pipelines.audit.ranges import Range, ranges_of

RANGES_MAX: Final = 50
"""Of one bucket and one kind; the counts go on."""


class Finding(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    ALTERED = "altered"
    DEAD = "dead"
    """Not in the lake, but in the topic of dead letters: not lost."""


class Found(NamedTuple):
    """Offsets of one kind; `rows` is more than they are where a row is there three times."""

    kind: Finding
    rows: int
    ranges: tuple[Range, ...]


def compare_rows(
    topic_offsets: Any,
    topic_digests: Any,
    lake_offsets: Any,
    lake_digests: Any,
    dead_offsets: Any,
    *,
    is_expired: bool,
) -> list[Found]:
    """What one bucket of the lake lacks, has too much of, twice, or otherwise than the topic.

    `is_expired`: the topic no longer has these offsets, so only doubles can be found.
    """
    order = np.argsort(topic_offsets, kind="stable")
    topic_offsets, topic_digests = topic_offsets[order], topic_digests[order]
    order = np.argsort(lake_offsets, kind="stable")
    lake_offsets, lake_digests = lake_offsets[order], lake_digests[order]
    there, begins, counts = np.unique(lake_offsets, return_index=True, return_counts=True)
    found = []
    doubled = counts > 1
    if doubled.any():
        found.append(_found(Finding.DUPLICATED, there[doubled], counts[doubled] - 1, there))
    if is_expired:
        return found
    everything = np.union1d(topic_offsets, there)
    is_absent = ~np.isin(topic_offsets, there)
    is_dead = is_absent & np.isin(topic_offsets, dead_offsets)
    for kind, chosen in ((Finding.MISSING, is_absent & ~is_dead), (Finding.DEAD, is_dead)):
        if chosen.any():
            found.append(_found(kind, topic_offsets[chosen], None, everything))
    is_extra = ~np.isin(there, topic_offsets)
    if is_extra.any():
        found.append(_found(Finding.EXTRA, there[is_extra], counts[is_extra], everything))
    is_altered = _altered(topic_offsets, topic_digests, there, lake_digests, begins)
    if is_altered.any():
        found.append(_found(Finding.ALTERED, there[is_altered], None, everything))
    return found


def _altered(
    topic_offsets: Any, topic_digests: Any, there: Any, lake_digests: Any, begins: Any
) -> Any:
    """Which offsets of the lake have a row, or several, that are not what the topic holds."""
    if not len(there):
        return np.zeros(0, dtype=bool)
    place = np.searchsorted(topic_offsets, there)
    inside = place < len(topic_offsets)
    is_known = inside.copy()
    is_known[inside] = topic_offsets[place[inside]] == there[inside]
    wanted = np.zeros(len(there), dtype=np.uint64)
    wanted[is_known] = topic_digests[place[is_known]]
    counts = np.diff(np.append(begins, len(lake_digests)))
    differs = lake_digests != np.repeat(wanted, counts)
    return is_known & np.logical_or.reduceat(differs, begins)


def _found(kind: Finding, offsets: Any, rows: Any, neighbours: Any) -> Found:
    count = len(offsets) if rows is None else int(rows.sum())
    return Found(kind, count, tuple(ranges_of(offsets, neighbours)))


class CopyFinding(NamedTuple):
    """Rows of the input or the output, by their places there: (place, offset)."""

    kind: Finding
    place: int
    offsets: Any


def compare_copies(
    wanted: "Copies", allowed: "Copies | None", copied: "Copies"
) -> list[CopyFinding]:
    """What of `wanted` is not in `copied` as often as it should be, and what is there too often.

    Rows are matched by identity. Where an identity is in the input n times, n copies are right:
    the first n by (place, offset) are taken for those. `allowed` are inputs that came after the
    cut: they may be in the output, and need not.
    """
    identities = np.unique(np.concatenate((wanted.identities, copied.identities)))
    want = _counts(identities, wanted)
    have = _counts(identities, copied)
    may = want if allowed is None else want + _counts(identities, allowed)
    result = []
    lacking = wanted.beyond(identities, np.minimum(want, have))
    result += _by_place(Finding.MISSING, lacking)
    too_many = copied.beyond(identities, may)
    known = may[np.searchsorted(identities, too_many.identities)] > 0
    result += _by_place(Finding.DUPLICATED, too_many.chosen(known))
    result += _by_place(Finding.EXTRA, too_many.chosen(~known))
    return result


class Copies(NamedTuple):
    """Rows of one side, as arrays of the same length, sorted by place and offset."""

    identities: Any
    places: Any
    offsets: Any

    def in_order(self) -> "Copies":
        return self.chosen(np.lexsort((self.offsets, self.places)))

    def chosen(self, which: Any) -> "Copies":
        return Copies(self.identities[which], self.places[which], self.offsets[which])

    def beyond(self, identities: Any, counts: Any) -> "Copies":
        """All but the first so many of each identity."""
        order = np.argsort(self.identities, kind="stable")
        sorted_ = self.identities[order]
        number = np.arange(len(sorted_)) - np.searchsorted(sorted_, sorted_)
        chosen = number >= counts[np.searchsorted(identities, sorted_)]
        return self.chosen(np.sort(order[chosen]))


def _counts(identities: Any, side: Copies) -> Any:
    """How often each is there; what is none of `identities` is left out."""
    place = np.searchsorted(identities, side.identities)
    inside = place < len(identities)
    known = place[inside][identities[place[inside]] == side.identities[inside]]
    return np.bincount(known, minlength=len(identities))


def _by_place(kind: Finding, rows: Copies) -> list[CopyFinding]:
    return [
        CopyFinding(kind, int(place), np.sort(rows.offsets[rows.places == place]))
        for place in np.unique(rows.places)
    ]
