"""Waits, with a deadline, until the cluster has decided a metadata change."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from moldau.api.broker import Broker
from moldau.api.quotas import charged
from moldau.model.errors import ErrorCode, RefusedError

DECIDED_SECONDS_MAX: Final = 4.0
"""Below the five seconds that a joining broker waits, so that it receives the reason."""
_POLL_SECONDS: Final = 0.002
_POLL_SECONDS_MAX: Final = 0.05

T = TypeVar("T")


class MetadataChanges:
    """Waits for changes with a deadline.

    A change continues after the deadline, until the service's own timeout: if it were cancelled,
    the next change could be decided before the outcome of this one is known.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: set[asyncio.Task[Any]] = set()

    async def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises RefusedError; REQUEST_TIMED_OUT if it takes too long."""
        task = asyncio.create_task(charged(work))
        self._running.add(task)
        task.add_done_callback(self._forget)
        done, _ = await asyncio.wait({task}, timeout=DECIDED_SECONDS_MAX)
        if done:
            return task.result()
        reasons = self._broker.cluster.health()
        raise RefusedError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"timed out after {DECIDED_SECONDS_MAX:g} s; the change may still happen"
            + "".join(f"; {reason}" for reason in reasons),
        )

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Retrieved, so that asyncio does not log it as never retrieved.
            task.exception()


async def await_leaders(broker: Broker, names: Iterable[str], seconds_max: float = 2.0) -> None:
    """Waits until these topics have leaders: a client writes next to a topic that it created.

    The limit is longer than an election, and shorter than client timeouts.
    """
    waiting = list(names)
    deadline = broker.clock.monotonic() + seconds_max
    pause_seconds = _POLL_SECONDS
    while True:
        waiting = [name for name in waiting if not _has_leaders(broker, name)]
        if not waiting or broker.clock.monotonic() >= deadline:
            return
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _POLL_SECONDS_MAX)


def _has_leaders(broker: Broker, name: str) -> bool:
    topic = broker.image.topic(name)
    if topic is None:
        return True
    return all(
        leader.broker >= 0
        for leader, _ in broker.cluster.leaders_and_in_sync(topic, topic.partitions)
    )
