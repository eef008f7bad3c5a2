"""Owns the queues of the partitions that this broker leads: finds them, and asks them.

One queue, with its machine, its mailbox and its timers, is `one_queue.py`'s.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.ids import PartitionIndex
from moldau.replica.replica import Replica
from moldau.service.appending import AppendService
from moldau.service.partitions import Partitions
from moldau.service.queues.limits import LeaseLimits
from moldau.service.queues.ports import LedgerDoor
from moldau.service.queues.settling import Settling
from moldau.service.queues.types import (
    PartitionStats,
    Peeked,
    Polled,
    QueueRefusedError,
    Verdict,
    Why,
)
from moldau.service.topics import TopicService


class LeaseHost:
    """The queues of this broker. Everything raises QueueRefusedError.

    `group_of` tells what the image knows of a group: a queue whose group is gone ends.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Partitions,
        image: Callable[[], Image],
        group_of: Callable[[str], QueueGroup | None],
        leader_of: Callable[[Topic, int], Leader],
        ledgers: LedgerDoor,
        topics: TopicService,
        appends: AppendService,
        on_defect: Callable[[BaseException], None],
        limits: LeaseLimits | None = None,
    ) -> None:
        self._loop = loop
        self._limits = limits or LeaseLimits()

    async def poll(
        self,
        group: QueueGroup,
        partitions: Sequence[tuple[Topic, PartitionIndex]],
        member: str,
        count_max: int,
        visibility_ms: int | None,
        wait_seconds: float,
    ) -> Polled:
        """Take messages from these partitions, or wait for some."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def settle(
        self, group: QueueGroup, member: str, tokens: Sequence[bytes], what: Settling
    ) -> list[Verdict]:
        """One verdict per token, in order. Raises only if the call as a whole is out of bounds."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def stats(self, group: QueueGroup, topic: Topic, index: PartitionIndex) -> PartitionStats:
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def peek(self, group: QueueGroup, topic: Topic, count_max: int) -> list[Peeked]:
        """Messages of the partitions that are led here, without taking them."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def evict(self, group_name: str, member: str) -> None:
        """The member is gone: what it has from this broker's queues is for others at once."""

    async def forget(self, group_name: str, topics: Iterable[Topic]) -> None:
        """The group is deleted: end its queues here, and what is stored of them, wherever led."""

    def touch(self, group: QueueGroup, partitions: Iterable[tuple[Topic, PartitionIndex]]) -> None:
        """Begin to load the queues of these partitions, where they are led here: a new queue that
        starts at the end starts at what is the end then."""

    def on_leadership(self, replica: Replica) -> None:
        """As Partitions.on_leadership."""

    def stop(self) -> None:
        """The broker stops: everybody who waits is refused."""
