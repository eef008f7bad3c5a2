"""Owns which coordinators run on this broker, and finds the broker of any of them.

Whatever is coordinated by name, groups and transactions, hashes to a partition of an internal topic
that stores it; the leader of that partition coordinates. The topic is created when the first name
shows up. Coordinators follow leadership: `lead` loads one, `unlead` ends it, and clients are told
to look for the other broker.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_host import CoordinatorHost
from moldau.data.partitions import HostedPartition, Partitions
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId

log = logging.getLogger(__name__)

C = TypeVar("C", bound=CoordinatorHost[Any, Any, Any])

_POLL_SECONDS = 0.02
_POLLS_MAX = 100
"""Two seconds: clients try again by themselves, but their first try shall do."""


_NAMES_REMEMBERED_MAX = 4096
"""Names are few, and asked for again and again."""


class CoordinatorService(ABC, Generic[C]):
    """The coordinators of one kind on this broker.

    `topic` stores what they know, in `partitions_wanted` partitions if it has to be created.
    `leader_of` returns the leader of a partition, if known. `on_internal_error` hears of a
    loading that failed as nobody foresaw.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        topic: str,
        partitions_wanted: int,
        partitions: Partitions,
        topics: TopicService,
        broker: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topic = topic
        self._partitions_wanted = partitions_wanted
        self._partitions = partitions
        self._topics = topics
        self._broker = broker
        self._leader_of = leader_of
        self._on_defect = on_internal_error
        self._coordinators: dict[int, C] = {}
        self._turns = asyncio.Lock()
        self._is_stopping = False

    @abstractmethod
    def _new_coordinator(self, index: int, hosted: HostedPartition) -> C:
        """For this epoch of that partition; `self._lost` is to hear when it ends by itself."""

    async def _loaded(self, coordinator: C) -> None:
        """Called when a coordinator serves; runs until it ends, if it likes."""

    # ---- following leadership

    def lead(self, index: int, hosted: HostedPartition) -> None:
        """This broker leads that partition of the topic and is ready: load what it stores."""
        if self._is_stopping:
            return
        current = self._coordinators.get(index)
        if current is not None and current.replica is hosted.replica and current.is_current:
            return
        self.unlead(index)
        coordinator = self._new_coordinator(index, hosted)
        self._coordinators[index] = coordinator
        coordinator.loading = self._loop.create_task(self._load(index, hosted, coordinator))
        coordinator.loading.add_done_callback(partial(self._load_ended, index, coordinator))

    def unlead(self, index: int) -> None:
        """This broker leads that partition no longer: answer who waits, and forget its state."""
        coordinator = self._coordinators.pop(index, None)
        if coordinator is not None:
            coordinator.resign()

    async def _load(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        try:
            await coordinator.load()
        except RefusedError as error:
            log.debug("%s is not loaded: %s", hosted.replica.partition, error)
            coordinator.loading = None
            coordinator.resign()
            self._lost(index, hosted, coordinator)
        except CorruptionError as error:
            # Refused as a whole: some of it would be worse than nothing.
            self._forget(index, coordinator)
            self._partitions.take_offline(hosted, error)
        else:
            await self._loaded(coordinator)

    def _load_ended(self, index: int, coordinator: C, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("%s-%d could not be loaded", self._topic, index, exc_info=error)
        self._forget(index, coordinator)
        self._on_defect(error)

    def _forget(self, index: int, coordinator: C) -> None:
        if self._coordinators.get(index) is coordinator:
            del self._coordinators[index]
        coordinator.loading = None
        coordinator.resign()

    def _lost(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        """It ended by itself. If this broker still leads after all, another one takes over."""
        self._loop.call_soon(self._replace, index, hosted, coordinator)

    def _replace(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        if self._coordinators.get(index) is not coordinator:
            return
        del self._coordinators[index]
        is_here = self._partitions.get(self._topic, index) is hosted
        if is_here and hosted.replica.is_ready:
            self.lead(index, hosted)

    # ---- stop

    def answer_waiting(self) -> None:
        """The broker stops: nobody shall wait for what never comes."""
        self._is_stopping = True
        for coordinator in self._coordinators.values():
            coordinator.answer_waiting()

    def stop(self) -> None:
        self._is_stopping = True
        for coordinator in self._coordinators.values():
            coordinator.stop()

    # ---- finding the coordinator

    async def ready(self) -> None:
        """Make sure that there is a place to store things. Raises RefusedError if there is none.

        Clients try again on its code; any other would end them.
        """
        try:
            await self._topics.ensure(
                self._topic, internal=True, partitions=self._partitions_wanted
            )
        except RefusedError as error:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None

    async def find_coordinator(self, name: str) -> BrokerId:
        """The broker that serves the name, as far as is known here. Raises RefusedError."""
        is_first = self._topics.image.topic(self._topic) is None
        await self.ready()
        leader = await self._await_leader(name, is_first=is_first)
        if leader.broker == NO_LEADER_ID:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"nobody leads the partition of {self._topic} that stores {name!r}",
            )
        return leader.broker

    async def _await_leader(self, name: str, *, is_first: bool) -> Leader:
        """Who leads the name's partition. Waits shortly for what is about to be there: a topic, a
        leader, a loading on this broker.

        A client that is told at once that there is none has its own tries, and librdkafka's are
        used up in a third of a second, before anybody can be elected: what was to be committed in
        a transaction then waits for ever.
        """
        for _ in range(_POLLS_MAX):
            topic = self._topics.image.topic(self._topic)
            if topic is None:
                break
            index = java_hash(name) % len(topic.partitions)
            leader = self._leader_of(topic, index)
            coordinator = self._coordinators.get(index)
            is_loading = coordinator is not None and not coordinator.loaded
            if leader.broker == self._broker and coordinator is None:
                # Elected, and ready in a moment; or damaged, and others have not heard of it yet.
                if not is_first and self._partitions.get(self._topic, index) is None:
                    break
            elif leader.broker != NO_LEADER_ID and not is_loading:
                return leader
            await asyncio.sleep(_POLL_SECONDS)
        else:
            if coordinator is not None:
                # It takes its time to load, and clients ask it again until it is done.
                return leader
        return NO_LEADER

    async def _coordinator_for(self, name: str) -> C:
        """As `_coordinator_of`; the topic is created if there is none. Raises RefusedError."""
        if self._topics.image.topic(self._topic) is None:
            await self.ready()
            await self._await_leader(name, is_first=True)
        return self._coordinator_of(name)

    def _coordinator_of(self, name: str) -> C:
        """Raises RefusedError if the name is not coordinated here."""
        topic = self._topics.image.topic(self._topic)
        if topic is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = java_hash(name) % len(topic.partitions)
        coordinator = self._coordinators.get(index)
        if (
            coordinator is None
            or not coordinator.is_current
            or self._partitions.get(self._topic, index) is None
        ):
            raise RefusedError(ErrorCode.NOT_COORDINATOR, f"{name!r} is not coordinated here")
        return coordinator

    def _current(self) -> Iterable[C]:
        """The coordinators that serve, or will when they are loaded."""
        return [each for each in self._coordinators.values() if each.is_current]


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, by which Kafka places names on partitions."""
    value = 0
    units = text.encode("utf-16-be")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    # The one number without an absolute value in 32 bits counts as 0 there.
    return value if value < 2**31 else (2**32 - value) % 2**31
