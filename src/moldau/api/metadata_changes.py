"""Owns the patience of doors with the cluster: what it decides is waited for, not for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from moldau.api.broker import Broker
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError

ANSWER_SECONDS_MAX: Final = 4.0
"""Below the five seconds that a joining broker waits, so that it hears what the trouble is."""
_POLL_SECONDS: Final = 0.02
_POLLS_MAX: Final = 100
"""Two seconds: longer than it takes to elect, shorter than clients wait."""

T = TypeVar("T")


class MetadataChanges:
    """Waits for the cluster to decide, but not for ever.

    What was asked goes on when nobody waits any more: a change of the metadata that is cancelled
    half-way would let the next one be decided before it is known whether this one holds. It ends
    by the service's own limit.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: set[asyncio.Task[Any]] = set()

    async def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises RefusedError, also to say that it takes too long."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS_MAX)
        if done:
            return task.result()
        reasons = self._broker.cluster.health()
        raise RefusedError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"not decided within {ANSWER_SECONDS_MAX:g} s, but it may be yet"
            + "".join(f"; {reason}" for reason in reasons),
        )

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Looked at, so that a refusal nobody waited for is not reported as lost.
            task.exception()


async def await_leaders(broker: Broker, topic: Topic) -> None:
    """Shortly: who creates a topic writes to it next, and would be told to come later."""
    for _ in range(_POLLS_MAX):
        places = broker.cluster.places(topic, topic.partitions)
        if all(leader.broker != NO_LEADER_ID for leader, _ in places):
            return
        await asyncio.sleep(_POLL_SECONDS)
