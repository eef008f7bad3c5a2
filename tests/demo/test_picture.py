"""The picture of the demo: to scale, with the gap in it."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.load import BUCKET_SECONDS, Gap, longest_gap, per_second
from demo.picture import Story, bars, in_terminal, resampled, save_png

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(VALUES, st.integers(1, 120))
def test_every_column_is_the_mean_of_its_part(values: list[float], width: int) -> None:
    found = resampled(values, width)
    assert len(found) == width
    assert min(values) <= min(found) + 1e-6
    assert max(found) <= max(values) + 1e-6


@given(VALUES, st.integers(1, 8))
def test_a_bar_is_empty_only_where_there_is_nothing(values: list[float], height: int) -> None:
    lines = bars(values, height)
    assert len(lines) == height
    for column, value in enumerate(values):
        cells = [line[column] for line in lines]
        assert (set(cells) == {" "}) == (value == 0)
        # Nothing hangs in the air.
        assert not any(above != " " and below != "█" for above, below in pairwise(cells))
    if max(values) > 0:
        assert lines[0][values.index(max(values))] == "█"


def test_acks_are_counted_by_the_second_and_the_longest_gap_is_found() -> None:
    times = [0.1, 0.2, 0.3, 4.9, 5.0]
    assert per_second(times, 5.0, 1.0) == [3, 0, 0, 0, 2]
    assert longest_gap(times) == Gap(0.3, 4.9)
    assert longest_gap([]) == Gap(0.0, 0.0)


@pytest.fixture
def story() -> Story:
    acks = [1000.0] * 40 + [0.0] * 10 + [1200.0] * 50
    return Story(
        seconds=100 * BUCKET_SECONDS,
        acks_per_second=acks,
        stricken_per_second=[each / 4 for each in acks],
        lag=[(1.0, 10.0), (12.0, 5000.0), (20.0, 0.0)],
        killed_at=10.0,
        restarted_at=20.0,
        gap=Gap(10.0, 12.5),
        broker=2,
    )


def test_the_terminal_shows_when_the_leader_was_killed(story: Story) -> None:
    text = in_terminal(story, columns=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "✗ killed" in text
    assert "↑ back" in text
    assert "nothing for 2.5 s" in text
    top = next(line for line in text.splitlines() if "│" in line)
    assert top.split("│")[0].strip() == "1,200"
    assert "       " in top.split("│")[1]


def test_the_png_is_saved(story: Story, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `demo` is not installed")
    path = tmp_path / "demo.png"
    save_png(story, path)
    assert path.read_bytes().startswith(b"\x89PNG")
