"""Where reading starts."""

import time
from datetime import UTC, datetime

import pytest

from moldau.cli.start_position import Position, parse_position

pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize(
    ("text", "offset"),
    [("beginning", -2), ("earliest", -2), ("end", -1), ("latest", -1), ("0", 0), ("77", 77)],
)
def test_offsets_and_their_names(text, offset):
    assert parse_position(text) == Position(offset=offset)


def test_a_negative_number_counts_from_the_end():
    assert parse_position("-5") == Position.before_end(5)
    assert parse_position("-5") == Position(offset=-2005)


def test_times_are_absolute_or_ago():
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    expected = int(moment.timestamp() * 1000)
    assert parse_position("@2026-01-02T00:00:00+00:00") == Position(time_ms=expected)
    assert parse_position(f"@{expected}") == Position(time_ms=expected)
    before = time.time_ns() // 1_000_000
    ago = parse_position("@-1h")
    assert ago is not None
    assert ago.time_ms is not None
    # A millisecond is lost where the time is cut to whole ones.
    assert before - 1 <= ago.time_ms + 3_600_000 <= time.time_ns() // 1_000_000 + 1


@pytest.mark.parametrize(
    "text", ["", "x", "@", "@x", "@-1y", "--5", "1.5", "@2026-99-01", "1" * 30]
)
def test_anything_else_is_refused(text):
    assert parse_position(text) is None


def test_the_option_explains_itself(cli):
    outcome = cli("consume", "t", "--offset", "sometime")
    assert outcome.code == 2
    assert "beginning, end, N, -N, @TIME" in outcome.err
