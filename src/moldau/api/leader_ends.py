"""The high watermarks of partitions that groups consume, and that have no replica here.

Their leaders are asked in the background, one request for each at a time; a scrape shows what the
one before it asked for, and waits for no other broker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from moldau.api.cluster_queries import PartitionExtent
from moldau.model import log_events as events
from moldau.model.ids import TopicPartition

log = logging.getLogger(__name__)

AskLeaders = Callable[
    [Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, PartitionExtent]]
]
REMOTE_PARTITIONS_MAX: Final = 5000
"""Partitions without a replica here, whose leaders are asked for their high watermarks."""
_NOTHING: Final[Mapping[TopicPartition, PartitionExtent]] = {}


class LeaderEnds:
    """What the leaders said last."""

    def __init__(self, known: Mapping[TopicPartition, PartitionExtent] = _NOTHING) -> None:
        self._known = known
        self._wanted: set[TopicPartition] = set()
        self._asking: asyncio.Task[None] | None = None

    def of(self, partition: TopicPartition) -> PartitionExtent | None:
        """None if its leader has not said yet, or did not respond. It is asked for the next scrape,
        unless that are too many."""
        if len(self._wanted) < REMOTE_PARTITIONS_MAX:
            self._wanted.add(partition)
        return self._known.get(partition)

    def ask(self, leaders: AskLeaders) -> None:
        """After a scrape: begin to ask for all that it wanted."""
        wanted, self._wanted = self._wanted, set()
        if self._asking is not None and not self._asking.done():
            return
        if not wanted:
            self._known = _NOTHING
            return
        self._asking = asyncio.get_running_loop().create_task(self._ask(leaders, wanted))

    async def _ask(self, leaders: AskLeaders, wanted: set[TopicPartition]) -> None:
        try:
            self._known = await leaders(wanted)
        except Exception:
            self._known = _NOTHING
            log.exception("cannot ask for high watermarks", extra=events.INTERNAL_ERROR())
