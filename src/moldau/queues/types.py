"""Owns what the doors and the queue service say to each other, in no protocol's terms.

What is refused as a whole is raised as QueueRefusedError. What is refused of single tokens is in
their verdicts.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field

from moldau.metadata.queue_groups import QueueSettings
from moldau.model.errors import MoldauError
from moldau.model.ids import BrokerId, PartitionIndex, TimestampMs
from moldau.records.record import Record


class ErrorReason(Enum):
    """Why something is refused; the names are those of the gRPC API's `Reason`."""

    INVALID_ARGUMENT = "something in the request is out of bounds"
    UNKNOWN_TOPIC = "there is no such topic"
    UNKNOWN_GROUP = "there is no such queue group"
    OTHER_MODE = "the group is of another kind"
    UNKNOWN_CONSUMER = "the consumer was evicted, or never connected: connect again"
    NOT_LEADER = "this broker does not lead the partition"
    UNAVAILABLE = "not now: try again"
    TOO_LARGE = "the message is too large"
    TIMED_OUT = "it took too long"
    SETTLED = "the message is settled already"
    EXPIRED = "the lease has ended; the message is delivered again, or was"
    NOT_HOLDER = "the message is leased to another consumer"
    LEADER_CHANGED = "the message was lost in a crash (log.flush is not always)"
    OTHER_GROUP = "the token belongs to another group or partition"
    BAD_TOKEN = "the token names a delivery that never was"
    NOT_ASSIGNED = "the partition belongs to another consumer"
    BUSY = "too many calls wait already"
    INTERNAL = "the broker made a mistake"


class QueueRefusedError(MoldauError):
    """The call is refused as a whole; nothing was changed unless the text says so."""

    def __init__(self, why: ErrorReason, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or why.value)
        self.why = why
        self.hint = hint


class Mode(Enum):
    """How a group takes messages."""

    ORDERED = "ordered"
    QUEUE = "queue"


class StartAt(Enum):
    """Where a group begins that has not been anywhere yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


class ConnectOptions(Struct, frozen=True, kw_only=True):
    """`mode` None: what the group is; a new one is ordered. `settings`: what is not None changes
    the group's; see QueueSettings."""

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
    """A partition to poll, and who leads it; -1: nobody at the moment. `address` is the leader's
    gRPC, as host:port, or empty."""

    topic: str
    partition: PartitionIndex
    leader: BrokerId
    address: str


class Assignment(Struct, frozen=True, kw_only=True):
    """`epoch` is another one whenever it changes, on whichever broker."""

    epoch: int
    partitions: tuple[AssignedPartition, ...]


class ConnectResult(Struct, frozen=True, kw_only=True):
    """`settings` are those of a queue group."""

    consumer: str
    mode: Mode
    heartbeat_interval_ms: int
    session_timeout_ms: int
    settings: QueueSettings | None
    assignment: Assignment


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat; `assignment` only if it is another one than the asker's."""

    heartbeat_interval_ms: int
    assignment: Assignment | None


Owned = dict[str, frozenset[int]]
"""Partitions by topic."""


class PollOptions(Struct, frozen=True, kw_only=True):
    """`partitions` None: all that are assigned to the consumer and led by this broker."""

    group: str
    consumer: str
    count_max: int = 1
    wait_ms: int = 0
    visibility_ms: int | None = None
    partitions: Owned | None = None


class Delivery(NamedTuple):
    """One message. `attempt` 0 and `lease_until` 0 in ordered groups."""

    topic: str
    partition: PartitionIndex
    record: Record
    token: bytes
    attempt: int
    lease_until: TimestampMs


class PollResult(Struct, frozen=True, kw_only=True):
    """`is_full`: there is more, but too much is open already; acks make room."""

    deliveries: list[Delivery] = field(default_factory=list)
    is_full: bool = False


class TokenResult(Struct, frozen=True):
    """Of one token; `why` None: it was carried out."""

    why: ErrorReason | None = None
    message: str = ""


DONE = TokenResult()


class PartitionStats(Struct, frozen=True, kw_only=True):
    """Numbers of one partition, where this broker leads it (`is_here`)."""

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
    """A queue group, as far as this broker can tell."""

    group: str
    settings: QueueSettings
    consumers: int
    partitions: tuple[PartitionStats, ...]


class MessageState(Enum):
    """Of a message that is looked at."""

    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"


class InspectedMessage(Struct, frozen=True, kw_only=True):
    """A message and what is known of it; `due`: when it is to be had again."""

    topic: str
    partition: PartitionIndex
    record: Record
    state: MessageState
    attempt: int = 0
    consumer: str = ""
    reason: str = ""
    due: int = 0
