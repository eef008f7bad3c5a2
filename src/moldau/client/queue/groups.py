"""Information about queue groups, merged from the responses of all leaders."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.client.queue.channels import PEEK, STATS
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.rpc import RpcClient
from moldau.model.queue_limits import PEEK_MESSAGES_MAX
from moldau.proto.v1 import queue_pb2 as pb

PEEK_MESSAGES: Final = 10
_STATES: Final[dict[int, str]] = {
    pb.PeekedMessage.READY: "ready",
    pb.PeekedMessage.LEASED: "leased",
    pb.PeekedMessage.DELAYED: "delayed",
    pb.PeekedMessage.DEAD: "dead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """The backlog of a group in one partition; `is_known`: its leader responded."""

    topic: str
    partition: int
    leader: int
    is_known: bool
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    floor: int = 0
    """All messages before this offset are settled."""
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """The settings and the backlog of a queue group."""

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
        """Available for delivery."""
        return sum(each.ready for each in self.partitions)

    @property
    def leased(self) -> int:
        return sum(each.leased for each in self.partitions)

    @property
    def delayed(self) -> int:
        """Waiting for a retry, or for their delivery time."""
        return sum(each.delayed for each in self.partitions)

    @property
    def dead(self) -> int:
        """Being moved to the dead-letter topic."""
        return sum(each.dead for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """The topics of a queue group, and its settings as in GroupStats."""

    group: str
    topics: tuple[str, ...]
    visibility: float
    attempts: int
    backoff: float
    backoff_max: float
    dead_letter_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """A message with its state: ready, leased, delayed or dead."""

    message: StoredMessage
    state: str
    consumer: str
    """The consumer that has leased it."""
    reason: str
    """Why it failed, if known."""
    due: datetime | None
    """When a leased or delayed message becomes available again."""


async def fetch_stats(
    rpc: RpcClient, group: str, *, seconds_max: float | None = None
) -> pb.StatsResponse:
    """The merged stats of all leaders. Raises CallFailed."""
    request = pb.StatsRequest(group=group)
    merged = pb.StatsResponse()
    partitions: dict[tuple[str, int], pb.PartitionStats] = {}
    for response in await rpc.call_all(STATS, request, seconds_max=seconds_max):
        merged.group = response.group
        merged.settings.CopyFrom(response.settings)
        merged.consumers = max(merged.consumers, response.consumers)
        for each in response.partitions:
            key = (each.topic, each.partition)
            # Of each partition, the stats of its leader.
            if key not in partitions or each.is_here:
                partitions[key] = each
    merged.partitions.extend(partitions[key] for key in sorted(partitions))
    return merged


async def fetch_peeked(
    rpc: RpcClient, group: str, topic: str, count_max: int, *, seconds_max: float | None = None
) -> pb.PeekResponse:
    """Messages of all leaders of the topic, oldest first. Raises CallFailed."""
    request = pb.PeekRequest(group=group, topic=topic, max_messages=count_max)
    responses = await rpc.call_all(
        PEEK, request, route=lambda view: view.topic_addresses(topic), seconds_max=seconds_max
    )
    found = [each for response in responses for each in response.messages]
    found.sort(key=_age)
    return pb.PeekResponse(messages=found[:count_max])


def _age(peeked: pb.PeekedMessage) -> tuple[int, int, int]:
    message = peeked.message
    return message.timestamp_ms, message.partition, message.offset


def checked_count(count_max: int) -> int:
    if not 1 <= count_max <= PEEK_MESSAGES_MAX:
        raise InvalidArgumentError(
            f"max_messages must be 1 to {PEEK_MESSAGES_MAX:,}, not {count_max}"
        )
    return count_max


def groups_of(response: pb.ListGroupsResponse) -> list[GroupInfo]:
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
        for each in response.groups
    ]


def stats_of(response: pb.StatsResponse) -> GroupStats:
    settings = response.settings
    return GroupStats(
        group=response.group,
        consumers=response.consumers,
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
            for each in response.partitions
        ),
    )


def peeked_of(response: pb.PeekResponse) -> list[PeekedMessage]:
    return [
        PeekedMessage(
            message=StoredMessage(each.message),
            state=_STATES.get(each.state, "unknown"),
            consumer=each.consumer_id,
            reason=each.reason,
            due=datetime.fromtimestamp(each.due_ms / 1000, UTC) if each.due_ms else None,
        )
        for each in response.messages
    ]
