"""Workers for partitions: one rate for all, and one error ends all."""

import threading

import pytest

from moldau.client.backup.work import Cancelled, Pace, run_all
from moldau.client.errors import ClientError
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def test_the_first_error_of_a_worker_ends_all():
    pace = Pace(1.0)
    started = threading.Barrier(2)

    def work(number: int) -> None:
        started.wait(wait_seconds_max())
        if number:
            raise ClientError("broken")
        # Would take forever at this rate.
        pace.add(10**9, 1)

    with pytest.raises(ClientError, match="broken"):
        run_all(work, [0, 1], 2, pace)
    with pytest.raises(Cancelled):
        pace.add(10, 1)
    assert pace.offsets == 2
