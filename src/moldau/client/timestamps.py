"""Parses timestamps as people write them."""

import re
from datetime import datetime
from typing import Final

_AGO_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_timestamp_ms(text: str, *, now_ms: int) -> int | None:
    """Milliseconds since 1970, from such a number, an ISO 8601 time (local if it has no zone), or a
    duration before `now_ms` such as -15m. None if the text is none of these.
    """
    if ago := re.fullmatch(r"-(\d{1,9})(ms|s|m|h|d)", text):
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    if re.fullmatch(r"\d{10,15}", text):
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
