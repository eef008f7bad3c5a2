import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.beside import COMPILED, KAFKA, OURS
from benchmarks.harness import Sample
from benchmarks.sides import (
    VARIANTS,
    Variant,
    WarmUp,
    is_steady,
    ours,
    placement,
    warm_up,
    warming,
)


def sample(wall_s: float, messages: int) -> Sample:
    return Sample(
        wall_s=wall_s,
        messages=messages,
        bytes=messages,
        server_cpu_s=0.1,
        client_cpu_s=0.1,
        other_cpu_share=0.0,
        server_rss_bytes=1,
    )


def loads(rates: list[int]) -> Iterator[Sample]:
    """Each takes half a second."""
    for rate in rates:
        yield sample(0.5, rate // 2)


def up_to(seconds: float) -> WarmUp:
    return WarmUp(seconds_min=0, seconds_max=seconds)


def test_leaders_take_turns_or_are_all_on_the_first_broker() -> None:
    assert placement(4, 3, on_first=False) == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]
    assert placement(2, 3, on_first=True) == [[1, 2, 3], [1, 2, 3]]
    assert placement(2, 1, on_first=False) == [[1], [1]]


@pytest.mark.parametrize(
    ("rates", "steady"),
    [
        ([], False),
        ([100.0, 100.0], False),
        ([100.0, 92.0, 95.0], True),
        ([10.0, 100.0, 99.0, 98.0], True),
        ([100.0, 100.0, 89.0], False),
    ],
)
def test_three_windows_within_a_tenth_are_steady(rates: list[float], steady: bool) -> None:
    assert is_steady(rates) == steady


def test_short_loads_are_put_together_to_windows_until_these_are_steady() -> None:
    # Four loads a window: 100, then 200 in each of three, in which single loads differ widely.
    rates = [100] * 4 + [100, 300, 100, 300] * 3 + [999]
    source = loads(rates)
    assert warm_up(lambda: next(source), up_to(60)) == [100, 200, 200, 200]
    assert next(source).messages == 999 // 2


def test_a_server_that_is_never_steady_is_warm_when_the_time_is_up() -> None:
    source = loads([100 * number for number in range(1, 1000)])
    assert len(warm_up(lambda: next(source), up_to(9))) == 5


def test_one_load_is_enough_where_there_is_no_time() -> None:
    source = loads([100, 200])
    assert warm_up(lambda: next(source), up_to(0.001)) == [100]


def test_a_plateau_before_the_least_time_is_not_believed() -> None:
    # Steady at 100 after 6 s, and again at 300 after 12 s.
    source = loads([100] * 12 + [300] * 40)
    limits = WarmUp(seconds_min=10, seconds_max=60)
    assert warm_up(lambda: next(source), limits) == [100, 100, 100, 300, 300, 300]


def test_the_first_load_of_a_server_is_taken_longest_and_three_nodes_take_longer() -> None:
    assert warming(1, is_first=True).seconds_min > warming(1, is_first=False).seconds_min
    assert warming(3, is_first=True).seconds_min > warming(1, is_first=True).seconds_min
    for brokers in (1, 3):
        limits = warming(brokers, is_first=True)
        assert 15 <= limits.seconds_min < limits.seconds_max


def test_the_side_that_targets_are_about_is_there_and_no_key_is_used_twice() -> None:
    keys = [KAFKA, *(one.key for one in VARIANTS)]
    assert OURS in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("age_s", "found"), [(-10, [OURS, COMPILED]), (10, [OURS])])
def test_what_was_compiled_from_an_older_source_is_not_measured(
    tmp_path: Path, age_s: int, found: list[str]
) -> None:
    source, compiled = tmp_path / "src", tmp_path / "compiled"
    variants = [Variant(key=OURS, name=""), Variant(key=COMPILED, name="", packages=compiled)]
    source.mkdir()
    module = source / "module.py"
    module.touch()
    assert [one.key for one in ours(variants, source)] == [OURS]
    compiled.mkdir()
    made = compiled.stat().st_mtime
    os.utime(module, (made + age_s, made + age_s))
    assert [one.key for one in ours(variants, source)] == found
