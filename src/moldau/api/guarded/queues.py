"""Work queues and ordered groups: connect, poll, settle, inspect."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from moldau.api.audit import Parts
from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.quotas import bytes_of
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.delivery_tokens import decode_delivery_token
from moldau.queues.types import (
    ConnectOptions,
    ConnectResult,
    GroupStats,
    HeartbeatReply,
    InspectedMessage,
    PartitionsByTopic,
    PollOptions,
    PollResult,
    TokenResult,
)
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_GROUP: Final = ResourceType.GROUP
_TOPIC: Final = ResourceType.TOPIC


class GuardedQueues:
    """Methods raise RefusedError for missing rights, QueueRefusedError for all else."""

    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.queues

    # ---- consumers

    async def connect(self, options: ConnectOptions) -> ConnectResult:
        """Joins a group; it is created if it does not exist."""
        if self._guard.is_open:
            return await self._service.connect(options)
        self._check("queues.connect", options.group, options.topics)
        found = await self._service.connect(options, self._check_definition)
        if found.settings is None:
            return found
        return replace(found, settings=self._shown(found.settings))

    def _check_definition(self, known: QueueGroup | None, desired: QueueGroup) -> None:
        """Called with the group that the change is for: if it is another one by then, the change is
        refused, and this is called again.

        Settings concern all topics of the queue, so their change needs the right to read all of
        them. The broker writes the dead letters of a queue: who makes it copy messages of a topic
        to another must be allowed to write there.
        """
        dead = desired.settings.dead_letter_topic
        if known is not None and desired.settings != known.settings:
            self._check_hidden("queues.connect", desired.name, known.topics)
        if (
            known is None
            or dead != known.settings.dead_letter_topic
            or not set(desired.topics).issubset(known.topics)
        ):
            self._guard.check("queues.bury", _TOPIC, dead)
            if self._broker.image.topic(dead) is None:
                self._guard.check("queues.bury_in_new_topic", _TOPIC, dead)
        about = Parts(_difference(known, desired))
        self._guard.check("queues.define", _GROUP, desired.name, about)

    async def heartbeat(
        self, group: str, consumer: str, epoch: int, owned: PartitionsByTopic
    ) -> HeartbeatReply:
        """Stays a member; returns the assignment if it is not that of `epoch`."""
        self._check("queues.heartbeat", group)
        found = await self._service.heartbeat(group, consumer, epoch, owned)
        assignment = found.assignment
        if self._guard.is_open or assignment is None:
            return found
        # The consumer may be that of another client, with other topics.
        seen = self._seen("queues.heartbeat", {each.topic for each in assignment.partitions})
        shown = tuple(each for each in assignment.partitions if each.topic in seen)
        return replace(found, assignment=replace(assignment, partitions=shown))

    async def disconnect(self, group: str, consumer: str) -> None:
        """Leaves the group; succeeds if the consumer has left already."""
        self._check("queues.disconnect", group)
        await self._service.disconnect(group, consumer)

    # ---- messages

    async def poll(self, options: PollOptions) -> PollResult:
        """Leases or reads messages, or waits for some."""
        if not self._guard.is_open:
            self._check("queues.poll", options.group, options.partitions or ())
            await self._check_consumer("queues.poll", options.group, options.consumer)
        if (meter := self._guard.meter()) is not None:
            # Before anything is leased: the leases of a refused poll would expire unseen.
            meter.check(QuotaKey.FETCH)
        polled = await self._service.poll(options)
        if polled.deliveries and not self._guard.is_open:
            # Rights may have ended while it waited. The leases expire, and others get the messages.
            self._check("queues.poll", options.group)
            topics = {each.topic for each in polled.deliveries}
            self._check_hidden("queues.poll", options.group, topics)
        if meter is not None:
            meter.take(QuotaKey.FETCH, bytes_of(each.record for each in polled.deliveries))
        return polled

    async def ack(self, group: str, consumer: str, tokens: Sequence[bytes]) -> list[TokenResult]:
        """The messages were processed. One result per token, in order."""
        await self._check_settling("queues.ack", group, consumer, tokens)
        return await self._service.ack(group, consumer, tokens)

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
        await self._check_settling("queues.nack", group, consumer, tokens)
        return await self._service.nack(group, consumer, tokens, delay_ms=delay_ms, reason=reason)

    async def extend(
        self, group: str, consumer: str, tokens: Sequence[bytes], *, visibility_ms: int
    ) -> list[TokenResult]:
        """Extends leases; queue groups only."""
        await self._check_settling("queues.extend", group, consumer, tokens)
        return await self._service.extend(group, consumer, tokens, visibility_ms=visibility_ms)

    async def _check_settling(
        self, use_case: str, group: str, consumer: str, tokens: Sequence[bytes]
    ) -> None:
        if self._guard.is_open:
            return
        self._check(use_case, group)
        await self._check_consumer(use_case, group, consumer)
        # The consumer may have other topics by now, and anyone can make up a token.
        ids = {found.topic_id for each in tokens if (found := decode_delivery_token(each))}
        topics = map(self._broker.image.topic_by_id, ids)
        self._check_hidden(use_case, group, [each.name for each in topics if each is not None])

    async def _check_consumer(self, use_case: str, group: str, consumer: str) -> None:
        """Rights on the topics of a consumer may have ended since it connected, and its id may be
        that of another client."""
        self._check_hidden(use_case, group, await self._service.topics_of(group, consumer))

    def _check_hidden(self, use_case: str, group: str, topics: Iterable[str]) -> None:
        """For topics that the client did not name, and may not know of: only the audit log names
        them."""
        for name in topics:
            if not self._guard.allows(use_case, _TOPIC, name):
                if self._may_describe(name):
                    raise self._guard.refusal(use_case, _TOPIC, name)
                raise self._guard.refusal(use_case, _GROUP, group)

    def _may_describe(self, topic: str) -> bool:
        return self._guard.sees("queues.stats", _TOPIC, topic)

    def _check(self, use_case: str, group: str, topics: Iterable[str] = ()) -> None:
        if self._guard.is_open:
            return
        self._guard.check(use_case, _GROUP, group)
        for topic in topics:
            self._guard.check(use_case, _TOPIC, topic)

    # ---- groups

    async def stats(self, group: str) -> GroupStats:
        """Counts of a queue group, for the partitions that this broker leads."""
        self._check("queues.stats", group)
        found = await self._service.stats(group)
        if self._guard.is_open:
            return found
        seen = self._seen("queues.stats", {each.topic for each in found.partitions})
        return replace(
            found,
            settings=self._shown(found.settings),
            partitions=tuple(each for each in found.partitions if each.topic in seen),
        )

    async def list_groups(self, topic: str | None = None) -> list[QueueGroup]:
        """The queue groups, or those of a topic, by name."""
        if topic is not None and not self._guard.is_open:
            self._guard.check("queues.list_groups", _TOPIC, topic)
        return self._visible("queues.list_groups", await self._service.list_groups(topic))

    def known_groups(self) -> list[QueueGroup]:
        """The queue groups as this broker knows them, by name."""
        groups = self._broker.image.queue_groups
        return self._visible("queues.known_groups", [groups[name] for name in sorted(groups)])

    def _visible(self, use_case: str, groups: Iterable[QueueGroup]) -> list[QueueGroup]:
        """Groups that the client may describe, with the topics that it may describe."""
        guard = self._guard
        if guard.is_open:
            return list(groups)
        return [
            replace(
                each,
                topics=tuple(self._seen(use_case, each.topics)),
                settings=self._shown(each.settings),
            )
            for each in groups
            if guard.sees(use_case, _GROUP, each.name)
        ]

    def _shown(self, settings: QueueSettings) -> QueueSettings:
        """Without the name of a dead-letter topic that the client may not know of."""
        if self._may_describe(settings.dead_letter_topic):
            return settings
        return replace(settings, dead_letter_topic="")

    def _seen(self, use_case: str, topics: Iterable[str]) -> list[str]:
        return [name for name in topics if self._guard.sees(use_case, _TOPIC, name)]

    async def peek(self, group: str, topic: str, *, count_max: int) -> list[InspectedMessage]:
        """Inspects messages of the partitions that this broker leads, without leasing them."""
        self._check("queues.peek", group, (topic,))
        if (meter := self._guard.meter()) is None:
            return await self._service.peek(group, topic, count_max=count_max)
        meter.check(QuotaKey.FETCH)
        peeked = await self._service.peek(group, topic, count_max=count_max)
        meter.take(QuotaKey.FETCH, bytes_of(each.record for each in peeked))
        return peeked

    async def delete_group(self, group: str) -> None:
        """Deletes a queue group: its settings and the state of its messages."""
        self._guard.check("queues.delete_group", _GROUP, group)
        await self._service.delete_group(group)


def _difference(known: QueueGroup | None, desired: QueueGroup) -> list[str]:
    """For the audit log: topics that come to a queue, and settings, if they change."""
    topics = () if known is None else known.topics
    added = [f"topic {name}" for name in desired.topics if name not in topics]
    if known is not None and known.settings == desired.settings:
        return added
    settings = asdict(desired.settings)
    return [" ".join(f"{name}={value}" for name, value in settings.items()), *added]
