"""The threads in which logs are flushed."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from moldau.replica.flush_threads import FlushThreads
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


class Work:
    descriptor = None

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def __call__(self) -> None:
        self._run()

    def synced(self, error: int) -> None:
        raise AssertionError("threads do all of the work")


def test_no_more_threads_than_allowed_and_than_needed() -> None:
    threads = FlushThreads(2)
    names: set[int | None] = set()
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(wait_seconds_max())
        names.add(threading.current_thread().ident)

    threads.run([Work(work)], 1)
    threads.run([Work(work), Work(work), Work(work)], 4)
    threads.stop()
    assert len(names) == 2


def test_works_of_one_call_run_at_the_same_time() -> None:
    threads = FlushThreads(3)
    for _ in range(2):
        # The second time the threads are asleep already, or about to be.
        together = threading.Barrier(4)
        threads.run([Work(partial(together.wait, wait_seconds_max())) for _ in range(3)], 3)
        together.wait(wait_seconds_max())
    threads.stop()


def test_work_is_done_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for started in (0, 1):
        threads = FlushThreads(4)
        done: list[int] = []
        if started:
            threads.run([Work(lambda: None)], 1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            threads.run([Work(partial(done.append, number)) for number in range(3)], 3)
        threads.stop()
        assert sorted(done) == [0, 1, 2]


def test_no_work_is_left_to_threads_that_fall_asleep() -> None:
    threads = FlushThreads(2)
    for _ in range(2000):
        done = threading.Event()
        threads.run([Work(done.set)], 1)
        assert done.wait(wait_seconds_max())
    threads.stop()


def test_the_stop_waits_for_what_was_begun() -> None:
    threads = FlushThreads(1)
    done: list[int] = []
    for number in range(5):
        threads.run([Work(partial(done.append, number))], 1)
    threads.stop()
    assert done == [0, 1, 2, 3, 4]
