"""Owns the use cases of queues as the doors see them: connecting, polling, settling, looking.

Each call is checked, its consumer looked up among the members of its group, and handed to those who
know: `leases` for queue groups, `ordered` for the others.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.metadata.commands import DropQueueGroup
from moldau.metadata.image import Image, Topic
from moldau.metadata.leaders import Leader
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.clock import Clock
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.queues.connect import ConnectHandler, refused, starts_at_end
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import HeartbeatKind, MemberHeartbeatRequest
from moldau.queues.members import Member, Members
from moldau.queues.ordered import Led, OrderedGroups
from moldau.queues.queue_host import QueueHost
from moldau.queues.request_checks import (
    PEEK_COUNT_MAX,
    check_consumer,
    check_group,
    check_number,
    check_poll,
    check_settling,
    invalid,
)
from moldau.queues.settlement import Acked, Extended, Nacked
from moldau.queues.types import (
    ConnectOptions,
    ConnectResult,
    ErrorReason,
    GroupStats,
    HeartbeatReply,
    InspectedMessage,
    Owned,
    PartitionStats,
    PollOptions,
    PollResult,
    QueueRefusedError,
    TokenResult,
)
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

POLLS_MAX: Final = 20_000
"""Polls that wait at a time."""
_LOOK_SECONDS: Final = 2.0
"""A poll that waits looks so often what there is to wait for: leaders and members change."""
_IDLE_SECONDS: Final = 0.2
"""The same while there is nothing."""


class QueueService:
    """Work queues and ordered groups of this broker. Everything raises QueueRefusedError."""

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
        connecting: ConnectHandler,
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
        self._connecting = connecting
        self._leases = leases
        self._ordered = ordered
        self._on_defect = on_internal_error
        self._polling: dict[tuple[str, str], set[asyncio.Task[PollResult]]] = {}
        self._polls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: Image | None = None
        self._late: tuple[Mapping[str, QueueGroup], list[QueueGroup]] = ({}, [])

    @property
    def _image(self) -> Image:
        return self._metadata.image

    # ---- consumers

    async def connect(self, asked: ConnectOptions) -> ConnectResult:
        """Become a member of a group; the group is made if there is none."""
        return await self._connecting.connect(asked)

    async def heartbeat(
        self, group: str, consumer: str, epoch: int, owned: Owned
    ) -> HeartbeatReply:
        """Stay a member; hear of another assignment than that of `epoch`."""
        check_consumer(group, consumer)
        told = await self._calls.beat(
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
        if told.told is None:
            raise QueueRefusedError(ErrorReason.INTERNAL, "who stays is not told about itself")
        assignment = self._connecting.assignment(told.told)
        return HeartbeatReply(
            heartbeat_interval_ms=told.interval_ms,
            assignment=None if assignment.epoch == epoch else assignment,
        )

    async def disconnect(self, group: str, consumer: str) -> None:
        """Leave the group. Who is no member any more has left it."""
        check_consumer(group, consumer)
        await self._calls.beat(
            MemberHeartbeatRequest(group=group, member=consumer, kind=HeartbeatKind.LEAVE)
        )
        self._members.left(group, consumer)
        self._later(self._calls.announce_member_left(group, consumer))

    def on_gone(self, group: str, consumer: str) -> None:
        """A member is gone: nobody waits for messages in its name, and what it has is for others.

        Said by `members`; a member that is gone may be told of several times.
        """
        for task in self._polling.get((group, consumer), ()):
            task.cancel()
        if group in self._image.queue_groups:
            self._later(self._leases.evict(group, consumer))

    # ---- messages

    async def poll(self, asked: PollOptions) -> PollResult:
        """Take messages, or wait for some."""
        check_consumer(asked.group, asked.consumer)
        check_poll(asked.count_max, asked.wait_ms, asked.visibility_ms)
        if self._polls >= POLLS_MAX:
            raise QueueRefusedError(ErrorReason.BUSY, f"{POLLS_MAX} polls wait already")
        deadline = self._clock.monotonic() + asked.wait_ms / 1000
        async with self._waiting(asked.group):
            member = await self._members.member(asked.group, asked.consumer)
            if not member.is_queue and not any(member.owned.values()):
                # It may have been given something a moment ago.
                await self._members.refresh(asked.group)
            while True:
                member = await self._members.member(asked.group, asked.consumer)
                left = deadline - self._clock.monotonic()
                wait_seconds = max(0.0, min(left, _LOOK_SECONDS))
                if member.is_queue:
                    found = await self._poll_queue(asked, member, wait_seconds)
                else:
                    found = await self._poll_ordered(asked, member, wait_seconds)
                if found is None:
                    # Nothing of it is here, or not yet.
                    await asyncio.sleep(max(0.0, min(left, _IDLE_SECONDS)))
                elif found.deliveries:
                    return found
                if self._clock.monotonic() >= deadline:
                    return found or PollResult()

    async def _poll_queue(
        self, asked: PollOptions, member: Member, wait_seconds: float
    ) -> PollResult | None:
        group = await self._queue_group(asked.group)
        if not set(member.topics).issubset(group.topics):
            # Added elsewhere a moment ago; or deleted and made anew, which is another topic.
            await self._connecting.fresh()
            group = await self._queue_group(asked.group)
        if asked.partitions is None:
            led = self._led(
                (topic, partition.index)
                for name in member.topics
                if (topic := self._image.topic(name)) is not None
                for partition in topic.partitions
            )
        else:
            wanted = self._named(asked.partitions)
            for topic, _ in wanted:
                if topic.name not in group.topics:
                    raise QueueRefusedError(
                        ErrorReason.UNKNOWN_TOPIC,
                        f"topic {topic.name!r} is none of group {group.name!r}",
                    )
            led = self._checked_led(wanted)
        if not led:
            return None
        return await self._ended_with(
            member,
            asked,
            self._leases.poll(
                group, led, member.name, asked.count_max, asked.visibility_ms, wait_seconds
            ),
        )

    async def _poll_ordered(
        self, asked: PollOptions, member: Member, wait_seconds: float
    ) -> PollResult | None:
        if asked.visibility_ms is not None:
            raise invalid("an ordered group has no leases: visibility_ms is for queues")
        if asked.partitions is None:
            led = self._led(
                (topic, PartitionIndex(index))
                for topic_id, indexes in member.owned.items()
                if (topic := self._image.topic_by_id(topic_id)) is not None
                for index in sorted(indexes)
                if index < len(topic.partitions)
            )
        else:
            wanted = self._named(asked.partitions)
            if not all(member.owns(topic.topic_id, index) for topic, index in wanted):
                member = await self._newer(asked.group, member)
            for topic, index in wanted:
                if not member.owns(topic.topic_id, index):
                    raise QueueRefusedError(
                        ErrorReason.NOT_ASSIGNED,
                        f"{topic.name}-{index} is not assigned to {member.name!r}",
                    )
            led = self._checked_led(wanted)
        if not led:
            return None
        return await self._ended_with(
            member,
            asked,
            self._poll_places(asked, member, led, wait_seconds),
        )

    async def _poll_places(
        self, asked: PollOptions, member: Member, led: Sequence[Led], wait_seconds: float
    ) -> PollResult:
        deliveries = await self._ordered.poll(
            asked.group,
            member.name,
            led,
            asked.count_max,
            starts_at_end=starts_at_end(member.name),
            wait_seconds=wait_seconds,
            has=self._has(asked.group, member.name),
        )
        return PollResult(deliveries=deliveries)

    async def _newer(self, group: str, member: Member) -> Member:
        """The member by a view that is newer than this call."""
        await self._members.refresh(group)
        return await self._members.member(group, member.name)

    async def _ended_with(
        self, member: Member, asked: PollOptions, poll: Coroutine[Any, Any, PollResult]
    ) -> PollResult:
        """The poll, unless the member is gone before it ends."""
        key = (asked.group, member.name)
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
                f"{member.name!r} was evicted from group {asked.group!r}",
            )
        return task.result()

    async def ack(self, group: str, consumer: str, tokens: Sequence[bytes]) -> list[TokenResult]:
        """The messages are done. One verdict per token, in order."""
        check_settling(group, consumer, len(tokens))
        member = await self._members.member(group, consumer)
        if member.is_queue:
            known = await self._queue_group(group)
            return await self._leases.settle(known, consumer, tokens, Acked())
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
        """The messages could not be done; `delay_ms` None: as the group's backoff says."""
        check_settling(group, consumer, len(tokens), delay_ms=delay_ms, reason=reason)
        member = await self._members.member(group, consumer)
        if member.is_queue:
            known = await self._queue_group(group)
            return await self._leases.settle(known, consumer, tokens, Nacked(delay_ms, reason))
        return await self._ordered.nack(
            group, consumer, tokens, delay_ms, self._has(group, consumer)
        )

    async def extend(
        self, group: str, consumer: str, tokens: Sequence[bytes], *, visibility_ms: int
    ) -> list[TokenResult]:
        """The messages take longer; of queue groups only."""
        check_settling(group, consumer, len(tokens), visibility_ms=visibility_ms)
        member = await self._members.member(group, consumer)
        if not member.is_queue:
            raise QueueRefusedError(
                ErrorReason.OTHER_MODE, f"group {group!r} is ordered: its messages are not leased"
            )
        known = await self._queue_group(group)
        return await self._leases.settle(known, consumer, tokens, Extended(visibility_ms))

    # ---- groups

    async def stats(self, group: str) -> GroupStats:
        """Numbers of a queue group, of the partitions that are led here."""
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
        """All queue groups, or those that take from a topic, by name."""
        # Also those that another broker has been told of a moment ago.
        groups = (await self._connecting.fresh()).queue_groups
        return [
            group for _, group in sorted(groups.items()) if topic is None or topic in group.topics
        ]

    async def peek(self, group: str, topic: str, *, count_max: int) -> list[InspectedMessage]:
        """Messages of the partitions that are led here, without taking them."""
        check_group(group)
        check_number("max_messages", count_max, 1, PEEK_COUNT_MAX)
        known = await self._named_queue(group)
        found = self._image.topic(topic)
        if found is None or topic not in known.topics:
            raise QueueRefusedError(
                ErrorReason.UNKNOWN_TOPIC, f"topic {topic[:250]!r} is none of group {group!r}"
            )
        return await self._leases.peek(known, found, count_max)

    async def delete_group(self, group: str) -> None:
        """Forget a queue group: its settings, and what became of its messages.

        Its consumers are evicted first. What is stored of its messages goes before the name, so
        that who is interrupted can ask again; and once more after it, for what was written between.
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
        await self._leases.forget(group, topics, if_gone=True)

    async def _named_queue(self, name: str) -> QueueGroup:
        """A queue group that somebody asks for by its name."""
        known = self._image.queue_groups.get(name)
        if known is None:
            known = (await self._connecting.fresh()).queue_groups.get(name)
        if known is not None:
            return known
        if (await self._calls.describe(name)).exists:
            # It may have been made meanwhile, as a queue.
            known = (await self._connecting.fresh()).queue_groups.get(name)
            if known is not None:
                return known
            raise QueueRefusedError(ErrorReason.OTHER_MODE, f"group {name!r} is not a queue")
        raise QueueRefusedError(ErrorReason.UNKNOWN_GROUP, f"there is no queue group {name!r}")

    async def _queue_group(self, name: str) -> QueueGroup:
        """A queue group that has members."""
        known = self._image.queue_groups.get(name)
        if known is None:
            # Made elsewhere a moment ago, or deleted.
            known = (await self._connecting.fresh()).queue_groups.get(name)
        if known is None:
            raise QueueRefusedError(ErrorReason.UNKNOWN_GROUP, f"queue group {name!r} was deleted")
        return known

    # ---- partitions

    def _topics_of(self, group: QueueGroup) -> list[Topic]:
        image = self._image
        return [topic for name in group.topics if (topic := image.topic(name)) is not None]

    def _named(self, owned: Owned) -> list[Led]:
        found: list[Led] = []
        for name, indexes in owned.items():
            topic = self._image.topic(name)
            if topic is None:
                raise QueueRefusedError(
                    ErrorReason.UNKNOWN_TOPIC, f"topic {name[:250]!r} does not exist"
                )
            for index in sorted(indexes):
                if not 0 <= index < len(topic.partitions):
                    raise invalid(f"topic {name!r} has no partition {index}")
                found.append((topic, PartitionIndex(index)))
        return found

    def _led(self, partitions: Iterable[Led]) -> list[Led]:
        return [one for one in partitions if self._is_led(*one)]

    def _checked_led(self, wanted: list[Led]) -> list[Led]:
        for topic, index in wanted:
            if not self._is_led(topic, index):
                raise QueueRefusedError(
                    ErrorReason.NOT_LEADER, f"this broker does not lead {topic.name}-{index}"
                )
        return wanted

    def _is_led(self, topic: Topic, index: int) -> bool:
        hosted = self._partitions.get(topic.name, index)
        if hosted is None or hosted.replica.topic_id != topic.topic_id:
            return False
        return hosted.replica.is_leader and hosted.replica.is_ready

    def _has(self, group: str, consumer: str) -> Callable[[TopicId, int], bool]:
        """Whether a member has a partition, at the time that it is asked."""

        def has(topic: TopicId, index: int) -> bool:
            member = self._members.known(group, consumer)
            return member is not None and member.owns(topic, index)

        return has

    # ---- life

    async def run(self) -> None:
        """Until cancelled: keep what is known of members up to date."""
        await self._members.run()

    def on_image(self, image: Image) -> None:
        """The metadata have changed: queues that start at the end do so now."""
        before, self._seen = self._seen, image
        if before is None or before.queue_groups is image.queue_groups:
            return
        for name, group in image.queue_groups.items():
            known = before.queue_groups.get(name)
            if group.settings.starts_at_end and (known is None or known.topics != group.topics):
                self.begin(group)

    def begin(self, group: QueueGroup) -> None:
        """Let the queues of a group begin where they are led here."""
        self._leases.touch(
            group,
            self._led(
                (topic, partition.index)
                for topic in self._topics_of(group)
                for partition in topic.partitions
            ),
        )

    def on_leadership(self, replica: Replica) -> None:
        """As Partitions.on_leadership: queues that start at the end do so under each new leader,
        if nobody has led them yet."""
        self._leases.on_leadership(replica)
        name, index = replica.partition
        topic = self._image.topic(name)
        if topic is None or topic.topic_id != replica.topic_id or not self._is_led(topic, index):
            return
        for group in self._starting_late():
            if name in group.topics:
                self._leases.touch(group, [(topic, index)])

    def _starting_late(self) -> list[QueueGroup]:
        """Groups that start at the end; found once for all partitions of a start."""
        groups = self._image.queue_groups
        if groups is not self._late[0]:
            self._late = groups, [one for one in groups.values() if one.settings.starts_at_end]
        return self._late[1]

    def stop(self) -> None:
        """Everybody who waits is refused."""
        for task in self._tasks:
            task.cancel()
        self._leases.stop()

    @asynccontextmanager
    async def _waiting(self, group: str) -> AsyncIterator[None]:
        self._polls += 1
        try:
            with self._members.using(group):
                yield
        finally:
            self._polls -= 1

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Done without anybody waiting for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, QueueRefusedError):
            log.debug("not now: %s", error)
        else:
            self._on_defect(error)
