"""What brokers ask the leaders of a queue's partitions, for those who look after the queue."""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record

IN_FLIGHT_MAX = 1_000
"""Leases that a reply names, of all its partitions."""
ROWS_MAX = 1_000
"""Dead letters that the report of a redrive names."""


class QueuePartitions(Struct, frozen=True, kw_only=True, array_like=True):
    """Partitions of a topic that the receiver leads, and a group on them.

    `or_log`: if there is no such group, everything in the log is ready for it. `has_leases`: the
    reports name them.
    """

    group: str
    topic: str
    topic_id: bytes
    partitions: list[int]
    or_log: bool = False
    has_leases: bool = False


class InFlight(NamedTuple):
    partition: int
    offset: int
    worker: str
    attempt: int
    lease_left_ms: int


class PartitionReport(Struct, frozen=True, kw_only=True, array_like=True):
    partition: int
    ready: int
    leased: int
    delayed: int
    dead: int
    """To be moved to the dead-letter topic."""
    redeliveries: int
    """Deliveries beyond the first, of messages that are not settled."""
    acked_up_to: int
    end: int
    oldest_ready_ms: int | None
    in_flight: list[InFlight] = []


class DeadLettersWanted(Struct, frozen=True, kw_only=True, array_like=True):
    """Of one partition of a dead-letter topic, those that were not redriven, from `position` on."""

    group: str
    topic: str
    dead_topic: str
    dead_topic_id: bytes
    partition: int
    position: int
    count_max: int
    bytes_max: int


class SentRecord(NamedTuple):
    """A record on its way to another broker: names of headers need not be valid UTF-8."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]

    @classmethod
    def of(cls, record: Record) -> "SentRecord":
        headers = [(name.encode("utf-8", "surrogateescape"), at) for name, at in record.headers]
        return cls(record.offset, record.timestamp, record.key, record.value, headers)

    @property
    def record(self) -> Record:
        headers = [(name.decode("utf-8", "surrogateescape"), at) for name, at in self.headers]
        return Record(
            Offset(self.offset), TimestampMs(self.timestamp), self.key, self.value, headers
        )


class DeadLettersFound(Struct, frozen=True, kw_only=True, array_like=True):
    records: list[SentRecord]
    next: int
    """Where to go on; `is_end`: there was nothing more."""
    is_end: bool


class RedriveOrder(Struct, frozen=True, kw_only=True, array_like=True):
    """Dead letters of `topic` to send to `target`; None: to remove.

    A partition without offsets: all of it.
    """

    group: str
    topic: str
    dead_topic: str
    dead_topic_id: bytes
    partitions: list[tuple[int, list[int] | None]]
    target: str | None
    validate_only: bool
    count_max: int
    seconds_max: float


class RedriveRow(NamedTuple):
    """What became of one dead letter; with an `error` it was not redriven."""

    partition: int
    offset: int
    error: str = ""
    target_partition: int = -1
    target_offset: int = -1


class RedriveReport(Struct, kw_only=True, array_like=True):
    redriven: int = 0
    """Or removed."""
    failed: int = 0
    duplicates: int = 0
    """Of a message that was redriven before in the same run: settled, and not sent again."""
    rows: list[RedriveRow] = []
    """The first ones."""
    is_complete: bool = True
    """Every dead letter of the order was looked at."""
    refusals: dict[str, list[int]] = {}
    """Why partitions were given up."""


class Purged(StrEnum):
    """What is removed from a queue."""

    DEAD = "dead"
    READY = "ready"


class PurgeOrder(Struct, frozen=True, kw_only=True, array_like=True):
    """Ready messages to remove. Dead letters are removed by a RedriveOrder."""

    group: str
    topic: str
    topic_id: bytes
    partitions: list[int]
    seconds_max: float


class PurgeReport(Struct, frozen=True, kw_only=True, array_like=True):
    purged: int
    is_complete: bool
    refusals: dict[str, list[int]] = {}
    """Why partitions were given up."""
