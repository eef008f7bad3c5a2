"""Calls that wait for brokers, made at the same time."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

_AT_ONCE: Final = 32

K = TypeVar("K")
T = TypeVar("T")


def in_parallel(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """The results of the calls, in their order; the first error is raised.

    The threads do not keep the process from exiting, as those of an executor would. Click's context
    is that of one thread: the calls must not use it.
    """
    found: dict[K, T] = {}
    left = iter(list(calls.items()))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def work() -> None:
        while True:
            with lock:
                taken = next(left, None)
            if taken is None:
                return
            key, call = taken
            try:
                # Keys are distinct: no two threads write one entry.
                found[key] = call()
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(calls)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {key: found[key] for key in calls}
