"""Topics: find, create, change and delete them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from moldau.api.audit import VALIDATED, Parts
from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.guarded.configs import check_restoring, setting_text
from moldau.api.lookup import check_partition
from moldau.api.metadata_changes import await_leaders
from moldau.api.quotas import Meter
from moldau.control.topic_service import HIGH_WATERMARK
from moldau.metadata.image import Topic
from moldau.metadata.topic_configs import TopicConfig
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID, Offset, TopicId
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_TOPIC: Final = ResourceType.TOPIC
_DEFAULT: Final = -1


class GuardedTopics:
    __slots__ = ("_broker", "_guard")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker

    # ---- reads

    def find(self, name: str) -> Topic | None:
        """None if there is none. Raises RefusedError, whether it exists or not."""
        self._guard.check("topics.find", _TOPIC, name)
        return self._broker.image.topic(name)

    def get(self, name: str) -> Topic:
        """Raises RefusedError, also if there is no such topic."""
        self._guard.check("topics.get", _TOPIC, name)
        topic = self._broker.image.topic(name)
        if topic is None:
            raise unknown_topic(name)
        return topic

    def find_by_id(self, topic_id: bytes) -> Topic | None:
        """None if there is none that the client may know of."""
        topic = self._broker.image.topic_by_id(TopicId(topic_id))
        if topic is None or self._guard.is_open:
            return topic
        return topic if self._guard.sees("topics.find_by_id", _TOPIC, topic.name) else None

    def name_of(self, topic_id: bytes) -> str | None:
        """As `find_by_id`; in every fetch and produce of new clients, so it remembers."""
        topic = self._broker.image.topic_by_id(TopicId(topic_id))
        if topic is None:
            return None
        name, guard = topic.name, self._guard
        if guard.is_open:
            return name
        guard.refresh()
        if name not in guard.granted_topics("topics.name_of"):
            if not guard.sees("topics.name_of", _TOPIC, name):
                return None
            guard.remember("topics.name_of", name)
        return name

    def all(self) -> list[Topic]:
        """Those that the client may describe."""
        topics, guard = self._broker.image.topics.values(), self._guard
        if guard.is_open:
            return list(topics)
        return [topic for topic in topics if guard.sees("topics.all", _TOPIC, topic.name)]

    def config_of(self, topic: Topic) -> TopicConfig | None:
        """Its settings, typed; None for a client that may not see them."""
        if not self._guard.is_open and not self._guard.sees("topics.config_of", _TOPIC, topic.name):
            return None
        return self._broker.configs.topic_config(topic)

    # ---- changes

    async def create(
        self,
        name: str,
        *,
        partitions: int = _DEFAULT,
        replication_factor: int = _DEFAULT,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """The new topic; with `validate_only`, what it would be. Raises RefusedError."""
        # Of replicas that the client assigns: one entry per partition.
        shape = (
            f"partitions={partitions} replication_factor={replication_factor}"
            if assignments is None
            else f"replicas={dict(assignments)}"
        )
        about = Parts(
            [shape, *map(setting_text, (configs or {}).items())],
            heading=VALIDATED if validate_only else "",
        )
        self._guard.check("topics.create", _TOPIC, name, about)
        check_restoring(self._guard, name, (configs or {}).items())
        meter = self._checked_meter()
        created = await self._broker.topics.create(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=configs,
            validate_only=validate_only,
        )
        if meter is not None and not validate_only:
            meter.take(QuotaKey.MUTATION, len(created.partitions))
        return created

    async def ensure(self, name: str) -> Topic:
        """The topic, created if needed. Raises RefusedError."""
        self._guard.check("topics.ensure", _TOPIC, name)
        if self._broker.image.topic(name) is not None:
            return await self._broker.topics.ensure(name)
        meter = self._checked_meter()
        created = await self._broker.topics.ensure(name)
        if meter is not None:
            meter.take(QuotaKey.MUTATION, len(created.partitions))
        return created

    async def delete(self, *, name: str | None = None, topic_id: TopicId | None = None) -> None:
        """Raises RefusedError."""
        if name is None and not self._guard.is_open:
            topic = None if topic_id is None else self.find_by_id(topic_id)
            if topic is None:
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "This topic id does not exist")
            self._guard.check("topics.delete", _TOPIC, topic.name)
        elif name is not None:
            if topic_id is not None:
                # Only one of them would be checked.
                raise RefusedError(ErrorCode.INVALID_REQUEST, "Give a topic name or id, not both")
            self._guard.check("topics.delete", _TOPIC, name)
        if (meter := self._checked_meter()) is None:
            await self._broker.topics.delete(name=name, topic_id=topic_id)
            return
        image = self._broker.image
        known = (
            image.topic(name) if name is not None else image.topic_by_id(topic_id or NO_TOPIC_ID)
        )
        await self._broker.topics.delete(name=name, topic_id=topic_id)
        if known is not None:
            meter.take(QuotaKey.MUTATION, len(known.partitions))

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> Topic:
        """The topic with them; with `validate_only`, what it would be. Raises RefusedError."""
        replicas = "" if assignments is None else f" replicas={list(assignments)}"
        about = f"{VALIDATED if validate_only else ''}partitions={count}{replicas}"
        self._guard.check("topics.add_partitions", _TOPIC, name, about)
        meter = self._checked_meter()
        known = self._broker.image.topic(name)
        topic = await self._broker.topics.add_partitions(
            name, count, assignments, validate_only=validate_only
        )
        if meter is not None and known is not None and not validate_only:
            meter.take(QuotaKey.MUTATION, count - len(known.partitions))
        return topic

    async def delete_records(self, topic: str, partition: int, before: int) -> Offset:
        """Raises the start offset of a partition; returns it. Raises RefusedError."""
        about = f"partition {partition} before {before}"
        self._guard.check("topics.delete_records", _TOPIC, topic, about)
        return await self._broker.topics.delete_records(topic, partition, before)

    async def trim(
        self, topic: Topic, before: Mapping[int, int]
    ) -> dict[int, Offset | RefusedError]:
        """Like `delete_records`, by any broker: the new start of each partition, or its error.

        Raises RefusedError.
        """
        about = Parts(list(before.items()), _trim_text)
        self._guard.check("topics.trim", _TOPIC, topic.name, about)
        for partition in before:
            check_partition(topic, partition)
        return await self._broker.deletions.delete(topic, before)

    def _checked_meter(self) -> Meter | None:
        """What charges the partitions of a change that follows. Raises QuotaExceededError."""
        meter = self._guard.meter()
        if meter is not None:
            meter.check(QuotaKey.MUTATION)
        return meter

    async def await_leaders(self, names: Iterable[str], seconds_max: float = 2.0) -> None:
        """Waits until these topics have leaders: a client writes next to what it created."""
        await await_leaders(self._broker, names, seconds_max)


def _trim_text(part: tuple[int, int]) -> str:
    partition, before = part
    return f"partition {partition} before {'the end' if before == HIGH_WATERMARK else before}"


def unknown_topic(name: str) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist")
