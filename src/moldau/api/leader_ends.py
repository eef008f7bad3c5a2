"""The high watermarks of partitions that groups consume, and that this broker does not lead.

Their leaders are asked in the background, one request for each at a time; a scrape shows what the
one before it asked for, and waits for no other broker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from moldau.api.cluster_queries import PartitionExtent
from moldau.model import log_events as events
from moldau.model.ids import TopicPartition

log = logging.getLogger(__name__)

AskLeaders = Callable[
    [Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, PartitionExtent]]
]
REMOTE_PARTITIONS_MAX: Final = 5000
"""Partitions that others lead, and are asked for their high watermarks."""
_NOTHING: Final[Mapping[TopicPartition, PartitionExtent]] = {}


class LeaderEnds:
    """What the leaders said last."""

    def __init__(self, known: Mapping[TopicPartition, PartitionExtent] = _NOTHING) -> None:
        self._known = known
        self._wanted: set[TopicPartition] = set()
        self._wanted_too: set[TopicPartition] = set()
        self._asking: asyncio.Task[None] | None = None

    def of(
        self, partition: TopicPartition, *, has_follower: bool = False
    ) -> PartitionExtent | None:
        """None if its leader has not said yet, or did not respond. It is asked for the next scrape,
        unless that are too many: then rather for those without a follower here."""
        wanted = self._wanted_too if has_follower else self._wanted
        if len(wanted) < REMOTE_PARTITIONS_MAX:
            wanted.add(partition)
        return self._known.get(partition)

    def learn(self, known: Mapping[TopicPartition, PartitionExtent]) -> None:
        """What leaders said to somebody else; until the next time they are asked."""
        is_full = len(self._known) + len(known) > 2 * REMOTE_PARTITIONS_MAX
        self._known = known if is_full else {**self._known, **known}

    def ask(self, leaders: AskLeaders) -> None:
        """After a scrape: begin to ask for all that it wanted."""
        wanted, self._wanted = self._wanted, set()
        wanted.update(islice(self._wanted_too, REMOTE_PARTITIONS_MAX - len(wanted)))
        self._wanted_too.clear()
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
