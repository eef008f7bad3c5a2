"""The threads that read cold data from the disk, so that the event loop does not wait for it."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from moldau.log.interface import CheckTask
from moldau.model.polite_thread import politely

_THREADS: Final = 8
"""As many reads wait for the disk at once."""

# A pool of its own: other work in threads does not wait for a slow disk.
_threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="cold")


def read_cold(loop: AbstractEventLoop, tasks: Sequence[CheckTask]) -> "Future[None]":
    """Runs the tasks one after another. Pass each to its log's end_check afterwards."""
    return loop.run_in_executor(_threads, politely, partial(_run_all, tasks))


def _run_all(tasks: Sequence[CheckTask]) -> None:
    for task in tasks:
        task.run()
