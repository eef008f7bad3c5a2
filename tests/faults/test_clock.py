"""A clock that is made to jump is off by that much, and clocks that count up are not."""

import time
from pathlib import Path

import pytest

from faults.clock import Skew
from faults.flags import put
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.inprocess


def test_the_wall_clock_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clock"
    skew = Skew(str(path))
    assert abs(skew.time() - time.time()) < 60
    for seconds in (3600, -86_400, 0):
        put(path, str(seconds))
        wait_until(
            lambda off=seconds: abs(skew.time() - time.time() - off) < 60, "the clock has jumped"
        )
        assert abs(skew.time_ns() / 1e9 - skew.time()) < 60
