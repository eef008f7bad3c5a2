"""Moments as people write them."""

import pytest

from moldau.client.timestamps import parse_timestamp_ms

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-15T08:00:00+00:00", NOW_MS),
        ("1700000000000", 1_700_000_000_000),
        ("-10m", NOW_MS - 600_000),
        ("-250ms", NOW_MS - 250),
        ("yesterday", None),
        ("-10", None),
        ("", None),
    ],
)
def test_iso_milliseconds_and_ago_are_moments(text: str, moment: int | None) -> None:
    assert parse_timestamp_ms(text, now_ms=NOW_MS) == moment
