"""Owns what is told about a queue group: each leader's part of it, put together."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.client.queue.channels import PEEK, STATS
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.rpc import RpcClient, any_broker
from moldau.proto.v1 import queue_pb2 as pb

PEEK_MESSAGES: Final = 10
PEEK_MESSAGES_MAX: Final = 1_000
_STATES: Final[dict[int, str]] = {
    pb.PeekedMessage.READY: "ready",
    pb.PeekedMessage.LEASED: "leased",
    pb.PeekedMessage.DELAYED: "delayed",
    pb.PeekedMessage.DEAD: "dead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """What a group has before it in one partition; `is_known`: its leader could say."""

    topic: str
    partition: int
    leader: int
    is_known: bool
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    floor: int = 0
    """Everything before is settled."""
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """A queue group: its settings, and what it has before it."""

    group: str
    consumers: int
    visibility: float
    attempts: int
    backoff: float
    backoff_max: float
    dead_letter_topic: str
    partitions: tuple[PartitionStats, ...]

    @property
    def ready(self) -> int:
        """To be had now."""
        return sum(each.ready for each in self.partitions)

    @property
    def leased(self) -> int:
        return sum(each.leased for each in self.partitions)

    @property
    def delayed(self) -> int:
        """Sent back, and pausing; or not to be delivered yet."""
        return sum(each.delayed for each in self.partitions)

    @property
    def dead(self) -> int:
        """On their way to the dead-letter topic."""
        return sum(each.dead for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A queue group: where it takes messages from, and its settings, as in GroupStats."""

    group: str
    topics: tuple[str, ...]
    visibility: float
    attempts: int
    backoff: float
    backoff_max: float
    dead_letter_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """A message that was looked at. `state`: ready, leased, delayed or dead."""

    message: StoredMessage
    state: str
    consumer: str
    """Who has it, if it is leased."""
    reason: str
    """Why it failed, where that is known."""
    due: datetime | None
    """When it is to be had again, of leased and delayed ones."""


async def fetch_stats(
    caller: RpcClient, group: str, *, seconds_max: float | None = None
) -> pb.StatsResponse:
    """The stats of all leaders in one. Raises CallFailed."""
    request = pb.StatsRequest(group=group)
    answers = await caller.everywhere(STATS, request, route=any_broker, seconds_max=seconds_max)
    return merge_stats(answers)


def merge_stats(answers: Iterable[pb.StatsResponse]) -> pb.StatsResponse:
    """One answer of several: of each partition what its leader says."""
    merged = pb.StatsResponse()
    partitions: dict[tuple[str, int], pb.PartitionStats] = {}
    for answer in answers:
        merged.group = answer.group
        merged.settings.CopyFrom(answer.settings)
        merged.consumers = max(merged.consumers, answer.consumers)
        for each in answer.partitions:
            place = (each.topic, each.partition)
            if place not in partitions or each.is_here:
                partitions[place] = each
    merged.partitions.extend(partitions[place] for place in sorted(partitions))
    return merged


async def fetch_peeked(
    caller: RpcClient, group: str, topic: str, count_max: int, *, seconds_max: float | None = None
) -> pb.PeekResponse:
    """Messages of all leaders of the topic, the oldest first. Raises CallFailed."""
    request = pb.PeekRequest(group=group, topic=topic, max_messages=count_max)
    answers = await caller.everywhere(
        PEEK, request, route=lambda view: view.topic_addresses(topic), seconds_max=seconds_max
    )
    found = [each for answer in answers for each in answer.messages]
    found.sort(key=_age)
    return pb.PeekResponse(messages=found[:count_max])


def _age(peeked: pb.PeekedMessage) -> tuple[int, int, int]:
    message = peeked.message
    return message.timestamp_ms, message.partition, message.offset


def checked_count(count_max: int) -> int:
    if not 1 <= count_max <= PEEK_MESSAGES_MAX:
        raise InvalidArgumentError(
            f"max_messages of {count_max}", hint=f"1 to {PEEK_MESSAGES_MAX:,}"
        )
    return count_max


def groups_of(answer: pb.ListGroupsResponse) -> list[GroupInfo]:
    return [
        GroupInfo(
            group=each.group,
            topics=tuple(each.topics),
            visibility=each.settings.visibility_ms / 1000,
            attempts=each.settings.attempts_max,
            backoff=each.settings.backoff_ms / 1000,
            backoff_max=each.settings.backoff_ms_max / 1000,
            dead_letter_topic=each.settings.dead_letter_topic,
        )
        for each in answer.groups
    ]


def stats_of(answer: pb.StatsResponse) -> GroupStats:
    settings = answer.settings
    return GroupStats(
        group=answer.group,
        consumers=answer.consumers,
        visibility=settings.visibility_ms / 1000,
        attempts=settings.attempts_max,
        backoff=settings.backoff_ms / 1000,
        backoff_max=settings.backoff_ms_max / 1000,
        dead_letter_topic=settings.dead_letter_topic,
        partitions=tuple(
            PartitionStats(
                topic=each.topic,
                partition=each.partition,
                leader=each.leader,
                is_known=each.is_here,
                ready=each.ready,
                leased=each.leased,
                delayed=each.delayed,
                dead=each.dead,
                floor=each.floor,
                end=each.end,
            )
            for each in answer.partitions
        ),
    )


def peeked_of(answer: pb.PeekResponse) -> list[PeekedMessage]:
    return [
        PeekedMessage(
            message=StoredMessage(each.message),
            state=_STATES.get(each.state, "unknown"),
            consumer=each.consumer_id,
            reason=each.reason,
            due=datetime.fromtimestamp(each.due_ms / 1000, UTC) if each.due_ms else None,
        )
        for each in answer.messages
    ]
