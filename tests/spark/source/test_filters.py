"""What filters of a query save from being read: never a row that could match."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moldau.spark.source.filters import narrowing_of
from moldau.spark.source.planning import Narrowing


@dataclass
class Column:
    """The filters of Spark have these two fields, and mean what their class is called."""

    attribute: tuple[str, ...]
    value: Any


class EqualTo(Column): ...


class In(Column): ...


class GreaterThan(Column): ...


class GreaterThanOrEqual(Column): ...


class LessThan(Column): ...


class LessThanOrEqual(Column): ...


class StringStartsWith(Column): ...


@dataclass
class Not:
    child: Column


MOMENT = datetime(2023, 11, 14, 22, 13, 20, 1999, tzinfo=UTC)


def test_partitions_that_are_named_are_the_only_ones() -> None:
    found = narrowing_of([In(("partition",), (1, 2, 3)), EqualTo(("partition",), 2)])
    assert found == Narrowing(partitions=frozenset({2}))


def test_topics_that_are_named_are_the_only_ones() -> None:
    assert narrowing_of([EqualTo(("topic",), "a")]) == Narrowing(topics=frozenset({"a"}))


def test_the_closest_bounds_of_offsets_hold() -> None:
    found = narrowing_of(
        [
            GreaterThan(("offset",), 9),
            GreaterThanOrEqual(("offset",), 5),
            LessThanOrEqual(("offset",), 30),
            LessThan(("offset",), 31),
        ]
    )
    assert (found.offset_first, found.offset_end) == (10, 31)


def test_listed_offsets_bound_what_is_read() -> None:
    found = narrowing_of([In(("offset",), (7, 3, 5))])
    assert (found.offset_first, found.offset_end) == (3, 8)


def test_a_lower_bound_of_time_is_taken_down_to_whole_milliseconds() -> None:
    found = narrowing_of([GreaterThan(("timestamp",), MOMENT)])
    assert found == Narrowing(time_first_ms=1_700_000_000_001)


def test_an_upper_bound_of_time_saves_nothing() -> None:
    """Timestamps need not rise with offsets."""
    assert narrowing_of([LessThan(("timestamp",), MOMENT)]) == Narrowing()


def test_filters_of_other_kinds_and_columns_are_passed_over() -> None:
    assert (
        narrowing_of(
            [
                Not(EqualTo(("partition",), 1)),
                StringStartsWith(("topic",), "a"),
                EqualTo(("value",), b"x"),
                EqualTo(("partition",), None),
                GreaterThan(("offset",), None),
            ]
        )
        == Narrowing()
    )
