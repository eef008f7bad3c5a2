"""Runs the coordinators of this broker, and finds the coordinator of a group or transactional id.

A name hashes to a partition of an internal topic; the leader of that partition is its coordinator.
The topic is created with the first name. Coordinators follow leadership: `lead` loads one, `unlead`
ends it, and its clients get NOT_COORDINATOR.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from moldau.control.topic_service import TopicService
from moldau.coordination.coordinator_host import CoordinatorHost, HostParts
from moldau.data.partitions import HostedPartition, Partitions
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.compiled import mypyc_attr
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId

log = logging.getLogger(__name__)

C = TypeVar("C", bound=CoordinatorHost[Any, Any, Any])
T = TypeVar("T")

_POLL_SECONDS = 0.02
_POLLS_MAX = 100
"""Two seconds: clients retry, but usually need not."""
_IMAGE_RETRY_SECONDS = 5.0
_NAMES_REMEMBERED_MAX = 4096
"""Cached hashes: the same few names are used all the time."""


class ServiceParts(TypedDict):
    """Dependencies of every coordinator service.

    `leader_of` returns the leader of a partition, if known. `on_internal_error` is called when
    loading fails unexpectedly.
    """

    loop: asyncio.AbstractEventLoop
    clock: Clock
    partitions: Partitions
    topics: TopicService
    broker: BrokerId
    leader_of: Callable[[Topic, int], Leader]
    on_internal_error: Callable[[BaseException], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class CoordinatorService(ABC, Generic[C]):
    """The coordinators of one kind on this broker.

    `topic` stores their state; it is created with `partitions_wanted` partitions.
    """

    def __init__(
        self, *, topic: str, partitions_wanted: int, **parts: Unpack[ServiceParts]
    ) -> None:
        self._loop = parts["loop"]
        self._clock = parts["clock"]
        self._topic = topic
        self._partitions_wanted = partitions_wanted
        self._partitions = parts["partitions"]
        self._topics = parts["topics"]
        self._broker = parts["broker"]
        self._leader_of = parts["leader_of"]
        self._on_internal_error = parts["on_internal_error"]
        self._coordinators: dict[int, C] = {}
        self._turns = asyncio.Lock()
        self._is_stopping = False

    @abstractmethod
    def _new_coordinator(self, index: int, hosted: HostedPartition) -> C:
        """For this epoch of the partition; it calls `self._lost` when it ends by itself."""

    def _host_parts(self, index: int, hosted: HostedPartition) -> HostParts:
        return HostParts(
            loop=self._loop,
            clock=self._clock,
            replica=hosted.replica,
            turns=self._turns,
            on_lost=partial(self._lost, index, hosted),
        )

    async def _loaded(self, coordinator: C) -> None:
        """Called when a coordinator is loaded; cancelled when it ends."""

    # ---- following leadership

    def lead(self, index: int, hosted: HostedPartition) -> None:
        """This broker became leader of a partition of the topic: load its coordinator."""
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
        """This broker is no longer the leader: end the coordinator."""
        coordinator = self._coordinators.pop(index, None)
        if coordinator is not None:
            coordinator.resign()

    async def _load(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        try:
            await coordinator.load()
        except RefusedError as error:
            log.debug("%s: loading the coordinator failed: %s", hosted.replica.partition, error)
            coordinator.loading = None
            coordinator.resign()
            self._lost(index, hosted, coordinator)
        except CorruptionError as damage:
            # A partly loaded state would be worse than none.
            self._forget(index, coordinator)
            self._partitions.take_offline(hosted, damage)
        else:
            await self._loaded(coordinator)

    def _load_ended(self, index: int, coordinator: C, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error(
            "internal error while loading the coordinator of %s-%d",
            self._topic,
            index,
            exc_info=error,
            extra=events.INTERNAL_ERROR(),
        )
        self._forget(index, coordinator)
        self._on_internal_error(error)

    def _forget(self, index: int, coordinator: C) -> None:
        if self._coordinators.get(index) is coordinator:
            del self._coordinators[index]
        coordinator.loading = None
        coordinator.resign()

    def _lost(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        """It ended by itself. If this broker still leads, a new one is loaded."""
        self._loop.call_soon(self._replace, index, hosted, coordinator)

    def _replace(self, index: int, hosted: HostedPartition, coordinator: C) -> None:
        if self._coordinators.get(index) is not coordinator:
            return
        del self._coordinators[index]
        is_here = self._partitions.get(self._topic, index) is hosted
        if is_here and hosted.replica.is_ready:
            self.lead(index, hosted)

    # ---- stop

    def reject_waiting(self) -> None:
        """The broker stops: reject waiting requests."""
        self._is_stopping = True
        for coordinator in self._coordinators.values():
            coordinator.reject_waiting()

    def stop(self) -> None:
        self._is_stopping = True
        for coordinator in self._coordinators.values():
            coordinator.stop()

    # ---- finding the coordinator

    async def ready(self) -> None:
        """Create the topic if needed. Raises RefusedError, with the code that clients retry."""
        try:
            await self._topics.ensure(
                self._topic, internal=True, partitions=self._partitions_wanted
            )
        except RefusedError as error:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from None

    async def find_coordinator(self, name: str) -> BrokerId:
        """The broker that coordinates the name, as far as known. Raises RefusedError."""
        is_first = self._topics.image.topic(self._topic) is None
        await self.ready()
        leader = await self._await_leader(name, is_first=is_first)
        if leader.broker == NO_LEADER_ID:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {self._topic} that stores {name!r} has no leader",
            )
        return leader.broker

    async def _await_leader(self, name: str, *, is_first: bool) -> Leader:
        """The leader of the name's partition. Waits shortly for the topic to be created, a leader
        to be elected, or the coordinator to be loaded on this broker.

        librdkafka gives up after retrying for a third of a second, less than an election takes; the
        offsets of a transaction are then never committed.
        """
        for _ in range(_POLLS_MAX):
            topic = self._topics.image.topic(self._topic)
            if topic is None:
                break
            index = java_hash(name) % len(topic.partitions)
            leader = self._leader_of(topic, index)
            coordinator = self._coordinators.get(index)
            is_loading = coordinator is not None and not coordinator.state.loaded
            if leader.broker == self._broker and coordinator is None:
                # Elected, and not ready yet; or corrupt, and others have not noticed yet.
                if not is_first and self._partitions.get(self._topic, index) is None:
                    break
            elif leader.broker != NO_LEADER_ID and not is_loading:
                return leader
            await asyncio.sleep(_POLL_SECONDS)
        else:
            if coordinator is not None:
                # Still loading: clients retry there until it is done.
                return leader
        return NO_LEADER

    async def _coordinator_for(self, name: str) -> C:
        """Like `_coordinator_of`, but creates the topic if needed. Raises RefusedError."""
        if self._topics.image.topic(self._topic) is None:
            await self.ready()
            await self._await_leader(name, is_first=True)
        return self._coordinator_of(name)

    def _coordinator_of(self, name: str) -> C:
        """Raises RefusedError if this broker is not the coordinator of the name."""
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
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR, f"this broker is not the coordinator of {name!r}"
            )
        return coordinator

    def _known_leader(self, name: str) -> BrokerId:
        """The leader of the name's partition as far as known, or NO_LEADER_ID."""
        topic = self._topics.image.topic(self._topic)
        if topic is None:
            return BrokerId(NO_LEADER_ID)
        return self._leader_of(topic, java_hash(name) % len(topic.partitions)).broker

    def _list_all(
        self, list_one: Callable[[C], tuple[ErrorCode, list[T]]]
    ) -> tuple[ErrorCode, list[T]]:
        """What all coordinators of this broker list, or the error of one that is loading."""
        found: list[T] = []
        for coordinator in self._coordinators.values():
            if coordinator.is_current:
                error, listed = list_one(coordinator)
                if error is not ErrorCode.NONE:
                    return error, []
                found += listed
        return ErrorCode.NONE, found


async def wait_for_image(fresh_image: Callable[[], Awaitable[Image]]) -> Image:
    """A fresh image; retries while there is none."""
    while True:
        try:
            return await fresh_image()
        except RefusedError:
            await asyncio.sleep(_IMAGE_RETRY_SECONDS)


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def java_hash(text: str) -> int:
    """The absolute value of Java's String.hashCode, which maps names to partitions in Kafka."""
    value = 0
    units = text.encode("utf-16-be")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    # -2**31 has no absolute value in 32 bits; Kafka uses 0.
    return value if value < 2**31 else (2**32 - value) % 2**31
