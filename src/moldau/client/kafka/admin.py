"""Administrative requests: topics, their configs, consumer groups and lag.

A facade over librdkafka's admin client: plain values in and out, and our errors.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from moldau.client.config import Brokers, bootstrap_list
from moldau.client.errors import NotFoundError, RejectedError, TimedOutError
from moldau.client.kafka.connect import LinkErrors, connect_admin, translate
from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX
from moldau.model.errors import ErrorCode

# A future waits a little longer than its request.
_RESULT_SECONDS_MAX = REQUEST_SECONDS_MAX + 2


class BrokerNode(NamedTuple):
    """One broker of the cluster."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition; offsets are -1 if unknown."""

    partition: int
    leader: int
    replicas: Sequence[int]
    isrs: Sequence[int]
    start_offset: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic and its partitions."""

    name: str
    partitions: Sequence[PartitionInfo]

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """One configuration value of a topic."""

    name: str
    value: str | None
    default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group."""

    name: str
    state: str
    simple: bool
    kind: str
    """classic, or consumer: the broker assigns (group.protocol=consumer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member of a group and its assignment."""

    id: str
    client_id: str
    host: str
    partitions: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """Lag of a group in one partition; -1 if it never committed."""

    topic: str
    partition: int
    committed_offset: int
    end_offset: int
    lag: int
    member: MemberInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """A group, its members, and its lag."""

    name: str
    state: str
    assignor: str
    coordinator: int
    members: Sequence[MemberInfo]
    lags: Sequence[GroupLag]
    kind: str


class Admin:
    """Administrative requests to one cluster. Raises UnreachableError if it cannot connect."""

    def __init__(
        self,
        brokers: Brokers | None = None,
        extra: Mapping[str, str] | None = None,
        *,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`security`: as of ProducerConfig; `extra`: more properties of librdkafka."""
        self.brokers = bootstrap_list(brokers)
        self._link = LinkErrors()
        self._client = connect_admin(
            self.brokers, {**(security or {}), **(extra or {})}, self._link
        )

    def __repr__(self) -> str:
        return f"<Admin at {self.brokers}>"

    def nodes(self) -> tuple[str, list[BrokerNode]]:
        """The cluster's id and its brokers."""
        metadata = self._metadata("list the brokers")
        nodes = [BrokerNode(node.id, node.host, node.port) for node in metadata.brokers.values()]
        return str(metadata.cluster_id or ""), sorted(nodes)

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name."""
        metadata = self._metadata("list topics")
        return [_topic_info(metadata.topics[name]) for name in sorted(metadata.topics)]

    def topic(self, name: str, *, offsets: bool = False) -> TopicInfo:
        """One topic; with `offsets`, also those of its partitions. Raises NotFoundError."""
        # All topics are requested: naming one would create it if auto-creation is on.
        found = self._metadata(f"describe topic {name}").topics.get(name)
        if found is None or found.error is not None:
            self._check_may_see(name)
            raise NotFoundError(
                f"topic {name} does not exist",
                hint=f"create it: moldau topic create {name} · list them: moldau topic list",
            )
        info = _topic_info(found)
        if not offsets:
            return info
        ids = [(name, partition.partition) for partition in info.partitions]
        starts = self._offsets(ids, OffsetSpec.earliest())
        ends = self._offsets(ids, OffsetSpec.latest())
        partitions = [
            replace(each, start_offset=starts.get(key, -1), end_offset=ends.get(key, -1))
            for key, each in zip(ids, info.partitions, strict=True)
        ]
        return TopicInfo(name=name, partitions=partitions)

    def _check_may_see(self, name: str) -> None:
        """For a topic that is not listed. Raises RejectedError if this user may not see it.

        Brokers do not tell such a user whether it exists. Without a controller nobody answers: then
        it is only known that the topic is not listed.
        """
        names = TopicCollection([name])
        futures = self._client.describe_topics(names, request_timeout=REQUEST_SECONDS_MAX)
        with contextlib.suppress(NotFoundError, TimedOutError):
            self._wait(futures[name], f"describe topic {name}")

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """-1 is the broker's default. False if the topic exists and `exist_ok` is set."""
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
        )
        futures = self._call(
            f"create topic {name}",
            lambda: self._client.create_topics([topic], request_timeout=REQUEST_SECONDS_MAX),
        )
        try:
            self._change(futures[name], f"create topic {name}", look=_describe_command(name))
        except RejectedError as error:
            if exist_ok and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def delete_topic(self, name: str) -> None:
        futures = self._client.delete_topics([name], request_timeout=REQUEST_SECONDS_MAX)
        self._change(futures[name], f"delete topic {name}", look=_describe_command(name))

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`."""
        new = [NewPartitions(name, total)]
        futures = self._client.create_partitions(new, request_timeout=REQUEST_SECONDS_MAX)
        doing = f"raise the partitions of topic {name} to {total}"
        self._change(futures[name], doing, look=_describe_command(name))

    def topic_config(self, name: str) -> list[ConfigInfo]:
        """Every configuration value of a topic, by name."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        futures = self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX)
        found = self._wait(futures[resource], f"describe the configuration of topic {name}")
        return [
            ConfigInfo(
                name=entry.name,
                value=entry.value,
                # 1 is Kafka's number for a value set on the topic itself.
                default=int(entry.source) != 1,
            )
            for _, entry in sorted(found.items())
        ]

    def alter_topic_config(
        self, name: str, changes: Mapping[str, str], removals: Iterable[str] = ()
    ) -> None:
        """Set some values and reset others to their default."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in changes.items()
        ]
        entries += [
            ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
            for key in removals
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._client.incremental_alter_configs(
            [resource], request_timeout=REQUEST_SECONDS_MAX
        )
        doing = f"change the configuration of topic {name}"
        self._change(futures[resource], doing, look=_describe_command(name))

    def groups(self) -> list[GroupInfo]:
        """Every consumer group, by name."""
        future = self._client.list_consumer_groups(request_timeout=REQUEST_SECONDS_MAX)
        found = self._wait(future, "list groups")
        if found.errors and not found.valid:
            raise translate(found.errors[0], brokers=self.brokers, doing="list groups")
        groups = [
            GroupInfo(
                name=group.group_id,
                state=_words(group.state),
                simple=bool(group.is_simple_consumer_group),
                kind=_words(group.type),
            )
            for group in found.valid
        ]
        return sorted(groups, key=lambda group: group.name)

    def group(self, name: str) -> GroupDetail:
        """One group with members and lag. Raises NotFoundError."""
        doing = f"describe group {name}"
        futures = self._client.describe_consumer_groups([name], request_timeout=REQUEST_SECONDS_MAX)
        found = self._wait(futures[name], doing)
        members = [_member(member) for member in found.members]
        request = [ConsumerGroupTopicPartitions(name)]
        committed_futures = self._client.list_consumer_group_offsets(
            request, request_timeout=REQUEST_SECONDS_MAX
        )
        committed = {
            (part.topic, part.partition): int(part.offset)
            for part in self._wait(committed_futures[name], doing).topic_partitions
        }
        state = _words(found.state)
        if state == "dead" and not committed:
            raise NotFoundError(f"group {name} does not exist", hint="list them: moldau group list")
        return GroupDetail(
            name=name,
            state=state,
            assignor=str(found.partition_assignor or ""),
            coordinator=int(found.coordinator.id) if found.coordinator else -1,
            members=members,
            lags=self._lags(committed, members),
            kind=_words(found.type),
        )

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets. Rejected while it has members."""
        futures = self._client.delete_consumer_groups([name], request_timeout=REQUEST_SECONDS_MAX)
        look = f"moldau group describe {name}"
        self._change(futures[name], f"delete group {name}", look=look)

    def offset_range(
        self, parts: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Start and end offset of the partitions that have a leader."""
        first = self._offsets(parts, OffsetSpec.earliest())
        end = self._offsets(parts, OffsetSpec.latest())
        return {part: (first[part], end[part]) for part in parts if part in first and part in end}

    def offsets_at(
        self, parts: Sequence[tuple[str, int]], time_ms: int
    ) -> dict[tuple[str, int], int]:
        """The first offset at or after that time; -1 where there is none."""
        return self._offsets(parts, OffsetSpec.for_timestamp(time_ms))

    def commit_group(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group without members."""
        parts = [TopicPartition(topic, part, offset) for (topic, part), offset in offsets.items()]
        futures = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name, parts)], request_timeout=REQUEST_SECONDS_MAX
        )
        doing = f"change the offsets of group {name}"
        for part in self._wait(futures[name], doing).topic_partitions:
            if part.error is not None:
                raise translate(KafkaException(part.error), brokers=self.brokers, doing=doing)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Delete the messages before these offsets; the new start of each partition."""
        parts = [TopicPartition(topic, part, offset) for (topic, part), offset in before.items()]
        futures = self._client.delete_records(parts, request_timeout=REQUEST_SECONDS_MAX)
        found = {}
        for part, future in futures.items():
            result = self._wait(future, f"delete messages of {part.topic}-{part.partition}")
            found[part.topic, part.partition] = int(result.low_watermark)
        return found

    def _lags(
        self, committed: Mapping[tuple[str, int], int], members: Sequence[MemberInfo]
    ) -> list[GroupLag]:
        owners = {part: member for member in members for part in member.partitions}
        parts = sorted(set(committed) | set(owners))
        ends = self._offsets(parts, OffsetSpec.latest()) if parts else {}
        lags = []
        for part in parts:
            position, end = committed.get(part, -1), ends.get(part, -1)
            lags.append(
                GroupLag(
                    topic=part[0],
                    partition=part[1],
                    committed_offset=position,
                    end_offset=end,
                    lag=max(0, end - position) if position >= 0 and end >= 0 else -1,
                    member=owners.get(part),
                )
            )
        return lags

    def _offsets(
        self, parts: Iterable[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        """Offsets of the partitions that have a leader; the others are left out."""
        request = {TopicPartition(topic, partition): spec for topic, partition in parts}
        found: dict[tuple[str, int], int] = {}
        if not request:
            return found
        futures = self._client.list_offsets(request, request_timeout=REQUEST_SECONDS_MAX)
        for part, future in futures.items():
            try:
                found[part.topic, part.partition] = int(future.result(_RESULT_SECONDS_MAX).offset)
            except (KafkaException, TimeoutError):
                continue
        return found

    def _metadata(self, doing: str) -> Any:
        return self._call(doing, lambda: self._client.list_topics(timeout=REQUEST_SECONDS_MAX))

    def _change(self, future: "Future[Any]", doing: str, *, look: str) -> None:
        """As _wait; the error of a timeout says that the change may still be made."""
        try:
            self._wait(future, doing)
        except TimedOutError as error:
            raise TimedOutError(
                f"{error}; the change may still be made",
                hint=f"check before you retry: {look}",
            ) from error

    def _wait(self, future: "Future[Any]", doing: str) -> Any:
        return self._call(doing, lambda: future.result(_RESULT_SECONDS_MAX))

    def _call(self, doing: str, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except KafkaException as error:
            self._link.check(self._client, self.brokers, error)
            raise translate(error, brokers=self.brokers, doing=doing) from error
        except TimeoutError as error:
            self._link.check(self._client, self.brokers, error)
            raise TimedOutError(
                f"cannot {doing}: request to {self.brokers} timed out",
                hint="find the cause: moldau doctor",
            ) from error
        except ValueError as error:
            raise translate(KafkaException(str(error)), doing=doing) from error


def _describe_command(topic: str) -> str:
    return f"moldau topic describe {topic}"


def _topic_info(metadata: Any) -> TopicInfo:
    return TopicInfo(
        name=metadata.topic,
        partitions=[
            PartitionInfo(
                partition=part.id,
                leader=part.leader,
                replicas=list(part.replicas),
                isrs=list(part.isrs),
            )
            for _, part in sorted(metadata.partitions.items())
        ],
    )


def _member(member: Any) -> MemberInfo:
    assigned = member.assignment.topic_partitions if member.assignment else []
    return MemberInfo(
        id=member.member_id,
        client_id=member.client_id,
        host=str(member.host).lstrip("/"),
        partitions=sorted((part.topic, part.partition) for part in assigned),
    )


def _words(state: Any) -> str:
    """PREPARING_REBALANCING → preparing rebalancing."""
    return str(state.name).lower().replace("_", " ")
