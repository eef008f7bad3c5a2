"""Types of the queue service that do not depend on a protocol.

A rejected call raises QueueRefusedError. Rejected tokens of a call are in its token results.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field

from moldau.metadata.queue_groups import QueueSettings
from moldau.model.errors import MoldauError
from moldau.model.ids import BrokerId, PartitionIndex, TimestampMs
from moldau.records.record import Record


class ErrorReason(Enum):
    """Why a call or a token is rejected; the names are those of the gRPC API's `Reason`."""

    INVALID_ARGUMENT = "a value in the request is out of bounds"
    UNKNOWN_TOPIC = "unknown topic"
    UNKNOWN_GROUP = "unknown queue group"
    OTHER_MODE = "the group is of another mode (queue or ordered)"
    UNKNOWN_CONSUMER = "unknown consumer (evicted, or never connected): connect again"
    NOT_LEADER = "this broker does not lead the partition"
    UNAVAILABLE = "temporarily unavailable: retry"
    TOO_LARGE = "the message is too large"
    TIMED_OUT = "timed out"
    SETTLED = "the message is already settled"
    EXPIRED = "the lease expired; the message has been or will be redelivered"
    NOT_HOLDER = "the message is leased to another consumer"
    LEADER_CHANGED = "the message was lost in a crash (log.flush is not always)"
    OTHER_GROUP = "the token belongs to another group or partition"
    BAD_TOKEN = "unknown delivery token"
    NOT_ASSIGNED = "the partition is assigned to another consumer"
    BUSY = "too many requests are waiting: retry later"
    INTERNAL = "internal error of the broker"


class QueueRefusedError(MoldauError):
    """The whole call is rejected; nothing was changed unless the message says so."""

    def __init__(self, reason: ErrorReason, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or reason.value)
        self.reason = reason
        self.hint = hint


def unavailable(why: object = "") -> QueueRefusedError:
    return QueueRefusedError(ErrorReason.UNAVAILABLE, str(why))


def not_leader(topic: str, partition: int) -> QueueRefusedError:
    return QueueRefusedError(
        ErrorReason.NOT_LEADER, f"this broker does not lead {topic}-{partition}"
    )


def unknown_topic(name: str) -> QueueRefusedError:
    return QueueRefusedError(ErrorReason.UNKNOWN_TOPIC, f"topic {name[:250]!r} does not exist")


def not_in_group(topic: str, group: str) -> QueueRefusedError:
    """Also of a topic that was deleted and recreated since."""
    return QueueRefusedError(
        ErrorReason.UNKNOWN_TOPIC,
        f"topic {topic[:250]!r} is not a topic of group {group!r}: connect again for it",
    )


class Mode(Enum):
    ORDERED = "ordered"
    QUEUE = "queue"


class StartAt(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


class ConnectOptions(Struct, frozen=True, kw_only=True):
    """`mode` None: that of the group; a new one is ordered. Settings that are not None change the
    group's; see QueueSettings."""

    group: str
    topics: tuple[str, ...]
    mode: Mode | None = None
    client_id: str = ""
    session_timeout_ms: int | None = None
    visibility_ms: int | None = None
    attempts_max: int | None = None
    backoff_ms: int | None = None
    backoff_ms_max: int | None = None
    dead_letter_topic: str | None = None
    start: StartAt = StartAt.EARLIEST


class AssignedPartition(Struct, frozen=True):
    """A partition to poll, and its leader (-1: none at present). `address` is the gRPC address of
    the leader, as host:port, or empty."""

    topic: str
    partition: PartitionIndex
    leader: BrokerId
    address: str


class Assignment(Struct, frozen=True, kw_only=True):
    """`epoch` identifies the content; it is the same on every broker."""

    epoch: int
    partitions: tuple[AssignedPartition, ...]


class ConnectResult(Struct, frozen=True, kw_only=True):
    """`settings` is None for an ordered group."""

    consumer: str
    mode: Mode
    heartbeat_interval_ms: int
    session_timeout_ms: int
    settings: QueueSettings | None
    assignment: Assignment


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """`assignment` is None if the consumer already has the current one."""

    heartbeat_interval_ms: int
    assignment: Assignment | None


PartitionsByTopic = dict[str, frozenset[int]]
"""Partitions by topic."""


class PollOptions(Struct, frozen=True, kw_only=True):
    """`partitions` None: all that are assigned to the consumer and led by this broker."""

    group: str
    consumer: str
    count_max: int = 1
    wait_ms: int = 0
    visibility_ms: int | None = None
    partitions: PartitionsByTopic | None = None


class Delivery(NamedTuple):
    """One message. In ordered groups, `attempt` and `lease_until` are 0."""

    topic: str
    partition: PartitionIndex
    record: Record
    token: bytes
    attempt: int
    lease_until: TimestampMs


class PollResult(Struct, frozen=True, kw_only=True):
    """`is_full`: there are more messages, but too many are open; acks make room."""

    deliveries: list[Delivery] = field(default_factory=list)
    is_full: bool = False


class TokenResult(Struct, frozen=True):
    """Result of one token; `reason` None: success."""

    reason: ErrorReason | None = None
    message: str = ""


DONE = TokenResult()


class PartitionStats(Struct, frozen=True, kw_only=True):
    """Counts of one partition; only if this broker leads it (`is_here`)."""

    topic: str
    partition: PartitionIndex
    leader: BrokerId
    is_here: bool
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    floor: int = 0
    end: int = 0


class GroupStats(Struct, frozen=True, kw_only=True):
    """A queue group, with the partitions as this broker knows them."""

    group: str
    settings: QueueSettings
    consumers: int
    partitions: tuple[PartitionStats, ...]


class MessageState(Enum):
    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"


class InspectedMessage(Struct, frozen=True, kw_only=True):
    """A message and its state; `due`: when it is available again."""

    topic: str
    partition: PartitionIndex
    record: Record
    state: MessageState
    attempt: int = 0
    consumer: str = ""
    reason: str = ""
    due: int = 0
