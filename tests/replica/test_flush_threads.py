"""The threads in which logs are flushed."""

import threading
from functools import partial

import pytest

from moldau.replica.flush_threads import FlushThreads
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


def test_no_more_threads_than_allowed_and_than_needed() -> None:
    threads = FlushThreads(2)
    names: set[int | None] = set()
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(wait_seconds_max())
        names.add(threading.current_thread().ident)

    for running in (1, 2, 3, 4):
        threads.run(work, running)
    threads.stop()
    assert len(names) == 2


def test_the_stop_waits_for_what_was_begun() -> None:
    threads = FlushThreads(1)
    done: list[int] = []
    for number in range(5):
        threads.run(partial(done.append, number), 1)
    threads.stop()
    assert done == [0, 1, 2, 3, 4]
