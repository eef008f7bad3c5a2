"""Owns what filters of a query mean for the offsets to read."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from moldau.spark.source.planning import Narrowing

_BELOW = {"LessThan": 0, "LessThanOrEqual": 1}
_ABOVE = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_EQUAL = ("EqualTo", "EqualNullSafe")


def narrowing_of(filters: Iterable[Any]) -> Narrowing:
    """Filters hold all together. Those that say nothing about what is read are passed over.

    Timestamps of records need not rise with their offsets, but the first record at or after a time
    is what brokers find, and none before it can match a lower bound. An upper bound would not do.
    """
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    firsts: list[int] = []
    ends: list[int] = []
    times: list[int] = []
    for found in filters:
        kind, column = type(found).__name__, getattr(found, "attribute", ())
        values = _values(found, kind)
        if column == ("partition",) and values is not None:
            partitions = _meet(partitions, values)
        elif column == ("topic",) and values is not None:
            topics = _meet(topics, values)
        elif column == ("offset",):
            if values:
                firsts.append(min(values))
                ends.append(max(values) + 1)
            elif kind in _ABOVE and _is_number(found.value):
                firsts.append(found.value + _ABOVE[kind])
            elif kind in _BELOW and _is_number(found.value):
                ends.append(found.value + _BELOW[kind])
        elif column == ("timestamp",) and (kind in _ABOVE or kind in _EQUAL):
            moment = _milliseconds(found.value)
            if moment is not None:
                times.append(moment)
    return Narrowing(
        partitions=partitions,
        topics=topics,
        offset_first=max(firsts, default=None),
        offset_end=min(ends, default=None),
        time_first_ms=max(times, default=None),
    )


def _values(found: Any, kind: str) -> frozenset[Any] | None:
    """The values that a column may have, if the filter lists them."""
    if kind in _EQUAL:
        listed = (found.value,)
    elif kind == "In":
        listed = tuple(found.value)
    else:
        return None
    return None if any(value is None for value in listed) else frozenset(listed)


def _meet(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _milliseconds(value: object) -> int | None:
    """Down to whole milliseconds, so that nothing is missed; None for what is no moment."""
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000 // 1))
