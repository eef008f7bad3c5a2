"""Looks after queues: what is in them, their dead letters, redrive and purge."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.quotas import bytes_of
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import ErrorCode, RefusedError
from moldau.queues.admin import DeadLetterPage, DeadLetterPosition, PurgeResult, QueueView, Redriven
from moldau.queues.admin_messages import Purged
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_GROUP: Final = ResourceType.GROUP
_TOPIC: Final = ResourceType.TOPIC


class GuardedQueueAdmin:
    """Methods raise RefusedError."""

    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.queue_admin

    async def show(self, group: str, topic: str) -> QueueView:
        """What is in a queue, and who has it; without a dead-letter topic that the client may not
        know of."""
        self._guard.check("queue_admin.show", _GROUP, group)
        self._guard.check("queue_admin.show", _TOPIC, topic)
        found = await self._service.show(group, topic)
        if self._guard.is_open:
            return found
        settings = found.group.settings
        topics = tuple(
            name
            for name in found.group.topics
            if self._guard.sees("queue_admin.show", _TOPIC, name)
        )
        shown = replace(found.group, topics=topics)
        if self._guard.sees("queue_admin.show", _TOPIC, settings.dead_letter_topic):
            return replace(found, group=shown)
        hidden = replace(settings, dead_letter_topic="")
        return replace(found, group=replace(shown, settings=hidden), dead_letters=None)

    async def dead_letters(
        self, group: str, topic: str, after: DeadLetterPosition, count: int
    ) -> DeadLetterPage:
        """Dead letters of the queue that were not redriven, by partition and offset."""
        self._guard.check("queue_admin.dead_letters", _GROUP, group)
        self._guard.check("queue_admin.dead_letters", _TOPIC, topic)
        await self._check_letters("queue_admin.read_letters", group)
        if (meter := self._guard.meter()) is None:
            return await self._service.dead_letters(group, topic, after, count)
        meter.check(QuotaKey.FETCH)
        page = await self._service.dead_letters(group, topic, after, count)
        meter.take(QuotaKey.FETCH, bytes_of(record for _, record in page.records))
        return page

    async def redrive(
        self,
        group: str,
        topic: str,
        records: Sequence[DeadLetterPosition] | None,
        *,
        target: str | None,
        validate_only: bool,
    ) -> Redriven:
        """Sends these dead letters, or all, to the target; None: back to the topic."""
        target = topic if target is None else target
        how_many = "all" if records is None else str(len(records))
        prefix = "only validated: " if validate_only else ""
        about = f"{prefix}{how_many} dead letters of {topic} to {target}"
        self._guard.check("queue_admin.redrive", _GROUP, group, about)
        self._guard.check("queue_admin.redrive", _TOPIC, target, about)
        await self._check_letters("queue_admin.read_letters", group)
        return await self._service.redrive(
            group, topic, records, target, validate_only=validate_only
        )

    async def purge(self, group: str, topic: str, what: Purged, *, confirm: str) -> PurgeResult:
        """Removes the dead letters, or the ready messages, of a queue.

        `confirm` must be the name of the group.
        """
        if confirm != group:
            refused = RefusedError(
                ErrorCode.INVALID_REQUEST, "'confirm' is not the name of the queue group"
            )
            refused.hint = f"nothing was removed; to do it, give confirm: {group}"
            raise refused
        removed = "dead letters" if what is Purged.DEAD else "ready messages"
        about = f"{removed} of {topic} in group {group}"
        self._guard.check("queue_admin.purge", _GROUP, group, about)
        self._guard.check("queue_admin.purge", _TOPIC, topic, about)
        if what is Purged.DEAD:
            await self._check_letters("queue_admin.delete_letters", group)
        return await self._service.purge(group, topic, what)

    async def _check_letters(self, use_case: str, group: str) -> None:
        """Only the audit log names a dead-letter topic that the client may not know of."""
        if self._guard.is_open:
            return
        known = await self._group(group)
        if known is None or self._broker.image.topic(known.settings.dead_letter_topic) is None:
            return
        name = known.settings.dead_letter_topic
        if not self._guard.allows(use_case, _TOPIC, name):
            if self._guard.sees("queue_admin.show", _TOPIC, name):
                raise self._guard.refusal(use_case, _TOPIC, name)
            raise self._guard.refusal("queue_admin.dead_letters", _GROUP, group)

    async def _group(self, name: str) -> QueueGroup | None:
        known = self._broker.image.queue_groups.get(name)
        if known is not None:
            return known
        # It may have been created on another broker just now, and the service would find it.
        return (await self._broker.metadata.fresh()).queue_groups.get(name)
