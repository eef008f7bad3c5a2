"""The facade of queues for the protocol servers: connect, poll, settle, inspect.

Each call is validated, its consumer looked up among the members of the group, and passed to
`queue_host` for queue groups or `ordered` for ordered groups.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.leases.commands import BACKOFF, Ack, Extend, Nack
from moldau.metadata.commands import DropQueueGroup
from moldau.metadata.image import CONSUMER_OFFSETS_TOPIC, Image, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.model.queue_limits import PEEK_MESSAGES_MAX
from moldau.queues.connect import ConnectHandler, DefinitionCheck, refused, starts_at_end
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import HeartbeatKind, MemberHeartbeatRequest
from moldau.queues.members import Member, Members
from moldau.queues.ordered import LedPartition, OrderedGroups
from moldau.queues.queue_counts import Backlog, QueueCounts
from moldau.queues.queue_host import QueueHost
from moldau.queues.request_checks import (
    check_consumer,
    check_group,
    check_number,
    check_poll,
    check_settling,
    invalid,
)
from moldau.queues.types import (
    ConnectOptions,
    ConnectResult,
    ErrorReason,
    GroupStats,
    HeartbeatReply,
    InspectedMessage,
    PartitionsByTopic,
    PartitionStats,
    PollOptions,
    PollResult,
    QueueRefusedError,
    TokenResult,
    not_in_group,
    not_leader,
    unknown_topic,
)
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

POLLS_MAX: Final = 20_000
"""Polls that may wait at the same time."""
_RECHECK_SECONDS: Final = 2.0
"""A waiting poll checks leaders and members again at this interval: they change."""
_IDLE_SECONDS: Final = 0.2
"""The same while this broker leads none of its partitions."""


class QueueService:
    """Work queues and ordered groups of this broker. Methods raise QueueRefusedError."""

    def __init__(
        self,
        *,
        me: BrokerId,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        metadata: MetadataStore,
        partitions: Partitions,
        leader_of: Callable[[Topic, int], Leader],
        calls: GroupRpcClient,
        members: Members,
        connect_handler: ConnectHandler,
        leases: QueueHost,
        ordered: OrderedGroups,
        on_internal_error: Callable[[BaseException], None],
    ) -> None:
        self._me = me
        self._loop = loop
        self._clock = clock
        self._metadata = metadata
        self._partitions = partitions
        self._leader_of = leader_of
        self._calls = calls
        self._members = members
        self._connect_handler = connect_handler
        self._leases = leases
        self._ordered = ordered
        self._on_internal_error = on_internal_error
        self._polling: dict[tuple[str, str], set[asyncio.Task[PollResult]]] = {}
        self._polls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_image: Image | None = None
        self._starting_at_end: tuple[Mapping[str, QueueGroup], list[QueueGroup]] = ({}, [])

    @property
    def _image(self) -> Image:
        return self._metadata.image

    # ---- consumers

    async def connect(
        self, options: ConnectOptions, check: DefinitionCheck | None = None
    ) -> ConnectResult:
        """Join a group; it is created if it does not exist. `check` may refuse its definition."""
        return await self._connect_handler.connect(options, check)

    async def heartbeat(
        self, group: str, consumer: str, epoch: int, owned: PartitionsByTopic
    ) -> HeartbeatReply:
        """Stay a member; returns the assignment if it is not that of `epoch`."""
        check_consumer(group, consumer)
        response = await self._calls.heartbeat(
            MemberHeartbeatRequest(
                group=group,
                member=consumer,
                kind=HeartbeatKind.STAY,
                owned=[
                    (topic.topic_id, sorted(indexes))
                    for name, indexes in owned.items()
                    if (topic := self._image.topic(name)) is not None
                ],
            )
        )
        if response.member is None:
            raise QueueRefusedError(ErrorReason.INTERNAL, "the heartbeat response has no member")
        assignment = self._connect_handler.assignment(response.member)
        return HeartbeatReply(
            heartbeat_interval_ms=response.interval_ms,
            assignment=None if assignment.epoch == epoch else assignment,
        )

    async def disconnect(self, group: str, consumer: str) -> None:
        """Leave the group; succeeds if the consumer has left already."""
        check_consumer(group, consumer)
        await self._calls.heartbeat(
            MemberHeartbeatRequest(group=group, member=consumer, kind=HeartbeatKind.LEAVE)
        )
        self._members.left(group, consumer)
        self._in_background(self._calls.announce_member_left(group, consumer))

    def on_member_left(self, group: str, consumer: str) -> None:
        """A member left: cancel its polls and release its leases. May be called repeatedly."""
        for task in self._polling.get((group, consumer), ()):
            task.cancel()
        if group in self._image.queue_groups:
            self._in_background(self._leases.evict(group, consumer))

    # ---- messages

    async def poll(self, options: PollOptions) -> PollResult:
        """Lease or read messages, or wait for some."""
        check_consumer(options.group, options.consumer)
        check_poll(options.count_max, options.wait_ms, options.visibility_ms)
        if self._polls >= POLLS_MAX:
            raise QueueRefusedError(
                ErrorReason.BUSY,
                f"too many polls wait on this broker (limit {POLLS_MAX}): retry later",
            )
        deadline = self._clock.monotonic() + options.wait_ms / 1000
        async with self._counted(options.group):
            member = await self._members.member(options.group, options.consumer)
            if not member.is_queue and not any(member.owned.values()):
                # A new assignment may not be in the view yet.
                await self._members.refresh(options.group)
            while True:
                member = await self._members.member(options.group, options.consumer)
                left = deadline - self._clock.monotonic()
                wait_seconds = max(0.0, min(left, _RECHECK_SECONDS))
                if member.is_queue:
                    found = await self._poll_queue(options, member, wait_seconds)
                else:
                    found = await self._poll_ordered(options, member, wait_seconds)
                if found is None:
                    # This broker leads none of its partitions, or not yet.
                    await asyncio.sleep(max(0.0, min(left, _IDLE_SECONDS)))
                elif found.deliveries:
                    return found
                if self._clock.monotonic() >= deadline:
                    return found or PollResult()

    async def _poll_queue(
        self, options: PollOptions, member: Member, wait_seconds: float
    ) -> PollResult | None:
        group = await self._queue_group(options.group)
        if not set(member.topics).issubset(group.topics):
            # Added on another broker just now; or deleted and recreated, which is another topic.
            await self._connect_handler.fresh()
            group = await self._queue_group(options.group)
        if options.partitions is None:
            led = self._only_led(
                (topic, partition.index)
                for name in member.topics
                if (topic := self._image.topic(name)) is not None
                for partition in topic.partitions
            )
        else:
            wanted = self._resolve(options.partitions)
            for topic, _ in wanted:
                if topic.name not in group.topics:
                    raise not_in_group(topic.name, group.name)
            led = self._all_led(wanted)
        if not led:
            return None
        return await self._cancellable(
            member,
            options,
            self._leases.poll(
                group, led, member.name, options.count_max, options.visibility_ms, wait_seconds
            ),
        )

    async def _poll_ordered(
        self, options: PollOptions, member: Member, wait_seconds: float
    ) -> PollResult | None:
        if options.visibility_ms is not None:
            raise invalid("an ordered group has no leases: visibility_ms is for queue groups")
        if options.partitions is None:
            led = self._only_led(
                (topic, PartitionIndex(index))
                for topic_id, indexes in member.owned.items()
                if (topic := self._image.topic_by_id(topic_id)) is not None
                for index in sorted(indexes)
                if index < len(topic.partitions)
            )
        else:
            wanted = self._resolve(options.partitions)
            if not all(member.is_assigned(topic.topic_id, index) for topic, index in wanted):
                await self._members.refresh(options.group)
                member = await self._members.member(options.group, member.name)
            for topic, index in wanted:
                if not member.is_assigned(topic.topic_id, index):
                    raise QueueRefusedError(
                        ErrorReason.NOT_ASSIGNED,
                        f"{topic.name}-{index} is not assigned to {member.name!r}",
                    )
            led = self._all_led(wanted)
        if not led:
            return None
        poll = self._ordered.poll(
            options.group,
            member.name,
            led,
            options.count_max,
            starts_at_end=starts_at_end(member.name),
            wait_seconds=wait_seconds,
            is_assigned=partial(self._is_assigned, options.group, member.name),
        )
        return await self._cancellable(member, options, poll)

    async def _cancellable(
        self, member: Member, options: PollOptions, poll: Coroutine[Any, Any, PollResult]
    ) -> PollResult:
        """Run the poll; cancelled if the member leaves."""
        key = (options.group, member.name)
        task = self._loop.create_task(poll)
        self._polling.setdefault(key, set()).add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            tasks = self._polling[key]
            tasks.discard(task)
            if not tasks:
                del self._polling[key]
        if task.cancelled():
            raise QueueRefusedError(
                ErrorReason.UNKNOWN_CONSUMER,
                f"{member.name!r} was evicted from group {options.group!r}",
            )
        return task.result()

    async def ack(self, group: str, consumer: str, tokens: Sequence[bytes]) -> list[TokenResult]:
        """The messages were processed. One result per token, in order."""
        check_settling(group, consumer, len(tokens))
        member = await self._members.member(group, consumer)
        if member.is_queue:
            known = await self._queue_group(group)
            return await self._leases.settle(known, consumer, tokens, Ack)
        return await self._ordered.ack(group, consumer, tokens)

    async def nack(
        self,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        *,
        delay_ms: int | None,
        reason: str,
    ) -> list[TokenResult]:
        """Processing failed; `delay_ms` None: the group's backoff."""
        check_settling(group, consumer, len(tokens), delay_ms=delay_ms, reason=reason)
        member = await self._members.member(group, consumer)
        if member.is_queue:
            known = await self._queue_group(group)
            delay = BACKOFF if delay_ms is None else delay_ms
            nack = partial(Nack, delay_ms=delay, reason=reason)
            return await self._leases.settle(known, consumer, tokens, nack)
        return await self._ordered.nack(
            group, consumer, tokens, delay_ms, partial(self._is_assigned, group, consumer)
        )

    async def extend(
        self, group: str, consumer: str, tokens: Sequence[bytes], *, visibility_ms: int
    ) -> list[TokenResult]:
        """Extend leases; queue groups only."""
        check_settling(group, consumer, len(tokens), visibility_ms=visibility_ms)
        member = await self._members.member(group, consumer)
        if not member.is_queue:
            raise QueueRefusedError(
                ErrorReason.OTHER_MODE, f"group {group!r} is ordered: it has no leases to extend"
            )
        known = await self._queue_group(group)
        extend = partial(Extend, visibility_ms=visibility_ms)
        return await self._leases.settle(known, consumer, tokens, extend)

    # ---- groups

    async def stats(self, group: str) -> GroupStats:
        """Counts of a queue group, for the partitions that this broker leads."""
        check_group(group)
        known = await self._named_queue(group)
        consumers = await self._members.count(group)
        partitions: list[PartitionStats] = []
        for topic in self._topics_of(known):
            for partition in topic.partitions:
                leader = self._leader_of(topic, partition.index).broker
                if leader == self._me:
                    partitions.append(await self._leases.stats(known, topic, partition.index))
                else:
                    partitions.append(
                        PartitionStats(
                            topic=topic.name,
                            partition=partition.index,
                            leader=leader,
                            is_here=False,
                        )
                    )
        return GroupStats(
            group=group, settings=known.settings, consumers=consumers, partitions=tuple(partitions)
        )

    async def list_groups(self, topic: str | None = None) -> list[QueueGroup]:
        """All queue groups, or those of a topic, by name."""
        # Includes groups that were created on other brokers just now.
        groups = (await self._connect_handler.fresh()).queue_groups
        return [
            group for _, group in sorted(groups.items()) if topic is None or topic in group.topics
        ]

    async def peek(self, group: str, topic: str, *, count_max: int) -> list[InspectedMessage]:
        """Inspect messages of the partitions that this broker leads, without leasing them."""
        check_group(group)
        check_number("max_messages", count_max, 1, PEEK_MESSAGES_MAX)
        known = await self._named_queue(group)
        found = self._image.topic(topic)
        if found is None or topic not in known.topics:
            raise not_in_group(topic, group)
        return await self._leases.peek(known, found, count_max)

    async def delete_group(self, group: str) -> None:
        """Delete a queue group: its settings and the state of its messages.

        Its consumers are evicted first. The state is deleted before the name, so that an
        interrupted call can be repeated, and again after it, for what was written in between.
        """
        check_group(group)
        known = await self._named_queue(group)
        for member in (await self._calls.describe(group)).members:
            if member.is_queue:
                await self.disconnect(group, member.member)
        topics = self._topics_of(known)
        await self._leases.forget(group, topics)
        try:
            await self._metadata.submit(DropQueueGroup(name=group))
        except RefusedError as error:
            raise refused(error) from None
        await self._leases.forget(group, topics, if_deleted=True)

    async def topics_of(self, group: str, consumer: str) -> frozenset[str]:
        """The topics whose messages a consumer can get, and may have got."""
        check_consumer(group, consumer)
        member = await self._members.member(group, consumer)
        owned = (self._image.topic_by_id(topic_id) for topic_id in member.owned)
        return frozenset((*member.topics, *(one.name for one in owned if one is not None)))

    async def _named_queue(self, name: str) -> QueueGroup:
        """A queue group by the name that a client gave."""
        known = await self._lookup(name)
        if known is not None:
            return known
        # Without their topic there was never a group, and the search for one would create it.
        are_stored = self._image.topic(CONSUMER_OFFSETS_TOPIC) is not None
        if are_stored and (await self._calls.describe(name)).exists:
            # It may have been created meanwhile, as a queue.
            known = (await self._connect_handler.fresh()).queue_groups.get(name)
            if known is not None:
                return known
            raise QueueRefusedError(ErrorReason.OTHER_MODE, f"group {name!r} is not a queue")
        raise QueueRefusedError(ErrorReason.UNKNOWN_GROUP, f"there is no queue group {name!r}")

    async def _queue_group(self, name: str) -> QueueGroup:
        """A queue group that has members."""
        known = await self._lookup(name)
        if known is None:
            raise QueueRefusedError(ErrorReason.UNKNOWN_GROUP, f"queue group {name!r} was deleted")
        return known

    async def _lookup(self, name: str) -> QueueGroup | None:
        known = self._image.queue_groups.get(name)
        if known is None:
            # It may have been created on another broker just now.
            known = (await self._connect_handler.fresh()).queue_groups.get(name)
        return known

    # ---- partitions

    def _topics_of(self, group: QueueGroup) -> list[Topic]:
        image = self._image
        return [topic for name in group.topics if (topic := image.topic(name)) is not None]

    def _resolve(self, owned: PartitionsByTopic) -> list[LedPartition]:
        found: list[LedPartition] = []
        for name, indexes in owned.items():
            topic = self._image.topic(name)
            if topic is None:
                raise unknown_topic(name)
            for index in sorted(indexes):
                if not 0 <= index < len(topic.partitions):
                    raise invalid(f"topic {name!r} has no partition {index}")
                found.append((topic, PartitionIndex(index)))
        return found

    def _only_led(self, partitions: Iterable[LedPartition]) -> list[LedPartition]:
        return [one for one in partitions if self._is_led(*one)]

    def _all_led(self, wanted: list[LedPartition]) -> list[LedPartition]:
        for topic, index in wanted:
            if not self._is_led(topic, index):
                raise not_leader(topic.name, index)
        return wanted

    def _is_led(self, topic: Topic, index: int) -> bool:
        hosted = self._partitions.get(topic.name, index)
        if hosted is None or hosted.replica.topic_id != topic.topic_id:
            return False
        return hosted.replica.is_leader and hosted.replica.is_ready

    def _is_assigned(self, group: str, consumer: str, topic: TopicId, index: int) -> bool:
        member = self._members.known(group, consumer)
        return member is not None and member.is_assigned(topic, index)

    # ---- life

    async def run(self) -> None:
        """Until cancelled: keep the views of members up to date."""
        await self._members.run()

    def on_image(self, image: Image) -> None:
        """The metadata changed: create the queues of new groups that start at the end."""
        before, self._last_image = self._last_image, image
        if before is None or before.queue_groups is image.queue_groups:
            return
        for name, group in image.queue_groups.items():
            known = before.queue_groups.get(name)
            if group.settings.starts_at_end and (known is None or known.topics != group.topics):
                self.load_queues(group)

    def load_queues(self, group: QueueGroup) -> None:
        """Load the queues of a group on partitions that this broker leads."""
        self._leases.load(
            group,
            self._only_led(
                (topic, partition.index)
                for topic in self._topics_of(group)
                for partition in topic.partitions
            ),
        )

    def backlogs(self) -> Iterator[tuple[str, str, Backlog]]:
        """As QueueHost.backlogs."""
        return self._leases.backlogs()

    @property
    def counts(self) -> Mapping[tuple[str, str], QueueCounts]:
        """What happened to messages here, by group and topic."""
        return self._leases.counts

    def on_leadership(self, replica: Replica) -> None:
        """As Partitions.on_leadership: also creates queues that start at the end, in case no
        earlier leader has."""
        self._leases.on_leadership(replica)
        name, index = replica.partition
        topic = self._image.topic(name)
        if topic is None or topic.topic_id != replica.topic_id or not self._is_led(topic, index):
            return
        for group in self._groups_starting_at_end():
            if name in group.topics:
                self._leases.load(group, [(topic, index)])

    def _groups_starting_at_end(self) -> list[QueueGroup]:
        """Groups that start at the end; cached, since a broker start asks for every partition."""
        groups = self._image.queue_groups
        if groups is not self._starting_at_end[0]:
            self._starting_at_end = (
                groups,
                [one for one in groups.values() if one.settings.starts_at_end],
            )
        return self._starting_at_end[1]

    def stop(self) -> None:
        """Reject all waiting calls."""
        for task in self._tasks:
            task.cancel()
        self._leases.stop()

    @asynccontextmanager
    async def _counted(self, group: str) -> AsyncIterator[None]:
        self._polls += 1
        try:
            with self._members.using(group):
                yield
        finally:
            self._polls -= 1

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, QueueRefusedError):
            log.debug("background work failed, which is retried later: %s", error)
        else:
            self._on_internal_error(error)
