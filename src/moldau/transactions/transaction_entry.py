"""State of one transactional id, and its write in flight."""

from typing import NamedTuple

from msgspec import Struct

from moldau.model.ids import TopicPartition
from moldau.transactions.events import Request
from moldau.transactions.records import StoredTransaction
from moldau.transactions.timers import TimerKey, TimerKind


class TransactionEntry(Struct, eq=False):
    """One transactional id.

    `stored` is durable: only committed records change it. The rest is lost with the coordinator,
    and rebuilt from `stored` by the next one.
    """

    transactional_id: str
    stored: StoredTransaction | None = None
    writing: int | None = None
    """Token of the write in flight; at most one."""
    unmarked: set[TopicPartition] = set()
    """Partitions without the marker of the prepared transaction."""
    marker_requests: dict[int, set[TopicPartition]] = {}
    """token of a WriteMarkers -> its partitions without a result"""
    retries: int = 0
    deadline: float | None = None
    """When the open transaction times out."""
    parked: dict[int, Request] = {}
    """Requests that wait for the end of a transaction or a write, oldest first."""

    @property
    def timeout_key(self) -> TimerKey:
        return TimerKey(TimerKind.TIMEOUT, self.transactional_id)

    @property
    def retry_key(self) -> TimerKey:
        return TimerKey(TimerKind.RETRY, self.transactional_id)

    @property
    def is_marked(self) -> bool:
        """Whether all markers are written, and the completion is not stored yet."""
        return (
            self.stored is not None
            and self.stored.state.is_prepared
            and not self.unmarked
            and self.writing is None
        )

    @property
    def is_empty(self) -> bool:
        return self.stored is None and self.writing is None and not self.parked


class TransactionWrite(NamedTuple):
    """States of one transactional id that are written as one batch, oldest first.

    `request` gets its reply when they are committed; `retried` is decided again then. A state of
    None deletes the id.
    """

    entry: TransactionEntry
    states: list[StoredTransaction | None]
    request: Request | None = None
    retried: Request | None = None
