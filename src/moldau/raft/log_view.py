"""The read-only view of the log that a Raft core has: the core itself stores no entries.

Indexes are half open throughout: `end_index` is the index of the next entry, and "committed up to
i" means every entry below i. An entry is a control entry (one index) or a whole record batch (one
index per record); a log is never truncated inside a batch.
"""

from typing import Protocol

from moldau.model.ids import Epoch, RaftIndex
from moldau.raft.membership import Members


class LogView(Protocol):
    """Read-only. Consistent with every effect that the core returned so far."""

    @property
    def start_index(self) -> RaftIndex:
        """The first entry; if the log starts inside a batch, the start of that batch.

        All below it is committed: nothing else may be deleted. If the log starts inside a batch,
        the epoch just below it may be reported too high, as the earlier one is not known.
        """
        ...

    @property
    def end_index(self) -> RaftIndex: ...

    @property
    def flushed_index(self) -> RaftIndex: ...

    @property
    def last_epoch(self) -> Epoch:
        """Epoch of the last entry, even if it is below the start; NO_EPOCH if there is none."""
        ...

    def epoch_of(self, index: RaftIndex) -> Epoch:
        """Epoch of the entry that contains `index`, from start_index - 1 to end_index - 1."""
        ...

    def boundary(self, index: RaftIndex) -> RaftIndex:
        """Where the entry that contains `index` begins."""
        ...

    def members(self, before: RaftIndex) -> tuple[RaftIndex, Members]:
        """The last membership entry below `before` and its index.

        If there is none above the log's start: what was in force there, with index -1.
        """
        ...
