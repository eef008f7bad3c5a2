"""The threads that read cold data from the disk, so that the event loop does not wait for it."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from moldau.log.interface import CheckTask
from moldau.model.polite_thread import politely

_FOR_CLIENTS: Final = 8
"""As many reads wait for the disk at once."""
_FOR_FOLLOWERS: Final = 4

# Pools of their own: other work in threads does not wait for a slow disk, nor do followers, for
# which producers may wait, for consumers that read old messages.
_for_clients: Final = ThreadPoolExecutor(_FOR_CLIENTS, thread_name_prefix="cold")
_for_followers: Final = ThreadPoolExecutor(_FOR_FOLLOWERS, thread_name_prefix="cold-follower")


def read_cold(
    loop: AbstractEventLoop, tasks: Sequence[CheckTask], *, for_follower: bool = False
) -> "Future[None]":
    """Runs the tasks one after another. Pass each to its log's end_check afterwards."""
    threads = _for_followers if for_follower else _for_clients
    return loop.run_in_executor(threads, politely, partial(_run_all, tasks))


def _run_all(tasks: Sequence[CheckTask]) -> None:
    for task in tasks:
        task.run()
