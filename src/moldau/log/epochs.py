"""The leader-epoch cache: where each epoch begins, by Raft index and by offset.

A new epoch begins with an election no-op in the control journal, or with a record batch whose
header contains it. An epoch may consist of its no-op only, so several may begin at one offset;
their Raft indexes differ.
"""

from bisect import bisect_left, bisect_right

from moldau.model.ids import NO_EPOCH, Epoch, Offset, RaftIndex


class EpochCache:
    """Epochs in log order: epochs and indexes increase, offsets do not decrease."""

    __slots__ = ("_epochs", "_indexes", "_offsets", "last")

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []
        self._indexes: list[RaftIndex] = []
        self._offsets: list[Offset] = []
        self.last: Epoch = NO_EPOCH
        """Epoch of the last entry of the log."""

    def begin(self, epoch: Epoch, index: RaftIndex, offset: Offset) -> None:
        """The entry at `index` is of `epoch`; recorded if the epoch is new."""
        if epoch == self.last:
            return
        if epoch < self.last:
            raise ValueError(f"epoch {epoch} after {self.last} at offset {offset}")
        self._epochs.append(epoch)
        self._indexes.append(index)
        self._offsets.append(offset)
        self.last = epoch

    def at_offset(self, offset: Offset) -> Epoch:
        """Epoch of the record at `offset`; at the end of the log, of its last entry."""
        place = bisect_right(self._offsets, offset) - 1
        return self._epochs[place] if place >= 0 else NO_EPOCH

    def at_index(self, index: RaftIndex) -> Epoch:
        """Epoch of the entry at `index`."""
        place = bisect_right(self._indexes, index) - 1
        return self._epochs[place] if place >= 0 else NO_EPOCH

    def end_of(self, epoch: Epoch, end_offset: Offset) -> tuple[Epoch, Offset]:
        """The largest epoch not above `epoch`, and the offset at which it ends.

        An epoch older than the log ended where the log begins, so that a reader that got there can
        continue.
        """
        place = bisect_right(self._epochs, epoch) - 1
        if place < 0:
            if epoch < 0 or not self._epochs:
                return NO_EPOCH, Offset(-1)
            return epoch, self._offsets[0]
        end = self._offsets[place + 1] if place + 1 < len(self._offsets) else end_offset
        return self._epochs[place], end

    def truncate(self, index: RaftIndex, before: Epoch) -> None:
        """Forget epochs that begin at or above `index`; `before` is the epoch below the log."""
        keep = bisect_left(self._indexes, index)
        start = self._offsets[:1]
        del self._epochs[keep:], self._indexes[keep:], self._offsets[keep:]
        self.last = self._epochs[-1] if self._epochs else before
        if not self._epochs and start and before != NO_EPOCH:
            # Truncated to its start: the next entry may be of the epoch below it.
            self._epochs, self._indexes, self._offsets = [before], [index], start

    def drop_below(self, index: RaftIndex, offset: Offset) -> None:
        """Forget epochs that end at or below the log's new start."""
        drop = bisect_right(self._indexes, index) - 1
        if drop < 0:
            return
        del self._epochs[:drop], self._indexes[:drop], self._offsets[:drop]
        self._indexes[0] = index
        self._offsets[0] = offset
