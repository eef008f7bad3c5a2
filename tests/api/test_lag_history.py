"""The age of records, by when the high watermark was seen where."""

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from moldau.api.lag_history import POINTS_MAX, LagHistory, WatermarkHistory
from moldau.model.ids import PartitionIndex, TopicPartition

T0 = TopicPartition("t", PartitionIndex(0))
T1 = TopicPartition("t", PartitionIndex(1))


def unread(offset: int) -> float | None:
    raise AssertionError(f"the log is read at {offset}")


def seconds(
    history: LagHistory,
    now: float,
    mark: int,
    committed: int,
    record_age: Callable[[int], float | None] = unread,
    *,
    lookups_max: int = 1,
) -> float | None:
    """One scrape."""
    history.begin(lookups_max)
    found = history.known_seconds_behind(
        T0, now=now, mark=mark, committed=committed, record_age=record_age
    )
    history.end()
    return found


def test_a_group_without_lag_has_no_age() -> None:
    history = LagHistory()
    assert seconds(history, 100.0, 7, 7) == 0
    assert seconds(history, 500.0, 7, 7) == 0


def test_records_that_came_between_two_scrapes_have_a_time_between_them() -> None:
    history = LagHistory()
    seconds(history, 100.0, 10, 10)
    assert seconds(history, 110.0, 30, 10) == 10
    assert seconds(history, 110.0, 30, 20) == 5
    # Nothing more is written: they only get older.
    assert seconds(history, 170.0, 30, 20) == 65


def test_a_quiet_time_before_a_record_does_not_make_it_old() -> None:
    history = LagHistory()
    for now in (100.0, 200.0, 300.0):
        seconds(history, now, 10, 10)
    assert seconds(history, 310.0, 11, 10) == 10


def test_what_was_there_before_the_first_scrape_is_read_once() -> None:
    history, reads = LagHistory(), []

    def record_age(offset: int) -> float:
        reads.append(offset)
        return 3600.0

    assert seconds(history, 100.0, 50, 20, record_age) == 3600
    assert seconds(history, 160.0, 50, 20, record_age) == 3660
    assert reads == [20]
    # And it is a point from which later ones are interpolated.
    found = seconds(history, 160.0, 50, 35)
    assert found is not None
    assert 60 < found < 3660


def test_an_age_that_cannot_be_read_is_not_known_and_a_time_in_the_future_is_zero() -> None:
    assert seconds(LagHistory(), 100.0, 50, 20, lambda _: None) is None
    assert seconds(LagHistory(), 100.0, 50, 20, lambda _: -5.0) == 0


def test_one_scrape_reads_the_log_a_bounded_number_of_times() -> None:
    history = LagHistory()
    history.begin(1)
    for partition, age in ((T0, 60.0), (T1, None)):
        found = history.known_seconds_behind(
            partition, now=100.0, mark=9, committed=1, record_age=lambda _: 60.0
        )
        assert found == age
    history.end()


def test_a_log_that_begins_again_has_a_new_history() -> None:
    history = LagHistory()
    seconds(history, 100.0, 1000, 1000)
    assert seconds(history, 110.0, 5, 5) == 0
    assert seconds(history, 120.0, 8, 5) == 10


def test_partitions_that_no_group_consumes_are_forgotten() -> None:
    history = LagHistory()
    seconds(history, 100.0, 10, 10)
    history.begin(1)
    history.end()
    # Known from no earlier scrape.
    assert seconds(history, 200.0, 20, 15, lambda _: 42.0) == 42


def test_the_high_watermark_may_rise_between_two_groups_of_one_scrape() -> None:
    history = LagHistory()
    for scraped_at, mark in ((100.0, 100), (110.0, 100), (120.0, 130)):
        history.begin(1)
        for later, committed, age in ((0, mark, 0), (10, mark, 0), (20, mark + 15, 0)):
            found = history.known_seconds_behind(
                T0, now=scraped_at, mark=mark + later, committed=committed, record_age=unread
            )
            assert found == age
        history.end()
    # It has an age as soon as a scrape saw it.
    assert seconds(history, 130.0, 150, 140) == 5


@given(seed=st.integers(0, 2**32))
def test_the_age_lies_between_the_scrapes_around_the_record(seed: int) -> None:
    rng = random.Random(seed)
    history, now, mark = WatermarkHistory(), 0.0, 0
    noted: list[tuple[float, int]] = []
    for _ in range(rng.randrange(2, 3 * POINTS_MAX)):
        now += rng.uniform(1, 30)
        mark += rng.choice((0, 0, 1, rng.randrange(1, 1000)))
        history.note(now, mark)
        noted.append((now, mark))
    assert len(history._marks) <= POINTS_MAX
    assert history._marks == sorted(history._marks)
    assert history._times == sorted(history._times)
    for offset in {noted[0][1], mark - 1, rng.randrange(noted[0][1], mark + 1)}:
        if not noted[0][1] <= offset < mark:
            continue
        found = history.appended_at(offset)
        # Thinned out or not: between points that were noted, on the right side of each.
        assert found is not None
        low = max(t for t, m in zip(history._times, history._marks, strict=True) if m <= offset)
        high = min(t for t, m in zip(history._times, history._marks, strict=True) if m > offset)
        assert low <= found <= high
