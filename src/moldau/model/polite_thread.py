"""Threads that compute beside the event loop, and let it run whenever it wakes up.

By default a thread that holds the interpreter keeps it for 5 ms while others wait: each wake-up of
the loop would take that long.
"""

import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SWITCH_SECONDS: Final = 0.0001
"""After which such a thread lets go of the interpreter, if others want to run."""
_lock: Final = threading.Lock()
_count = 0
_usual_seconds = 0.0


def politely(work: Callable[[], T]) -> T:
    """Does `work` in this thread. The interval is the process's: the last to end restores it."""
    global _count, _usual_seconds
    with _lock:
        if not _count:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)
        _count += 1
    try:
        return work()
    finally:
        with _lock:
            _count -= 1
            if not _count:
                sys.setswitchinterval(_usual_seconds)
