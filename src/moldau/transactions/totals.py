"""How transactions ended, and how many are open: numbers of the transaction coordinators."""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.model.ids import TimestampMs
from moldau.transactions.records import StoredTransaction, TransactionState


class EndedTransactions:
    """Counts since the start, over all coordinators of a broker."""

    __slots__ = ("aborted", "committed")

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0

    def note(self, stored: StoredTransaction | None) -> None:
        """This state was stored. It counts when it decides how a transaction ends."""
        if stored is not None and stored.state.is_prepared:
            self.committed += stored.state is TransactionState.PREPARE_COMMIT
            self.aborted += stored.state is TransactionState.PREPARE_ABORT


class TransactionTotals(NamedTuple):
    """Of one coordinator."""

    ids_by_state: Mapping[str, int]
    open: int
    oldest_started_at: TimestampMs | None
    """Of the open ones."""
