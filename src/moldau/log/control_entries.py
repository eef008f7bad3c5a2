"""The control entries of one log in memory, and the conversion between offset and Raft index.

The Raft index of a record is its offset plus the number of control entries before it; that of a
control entry is the offset of the record that follows it, plus its ordinal.
"""

from bisect import bisect_left, bisect_right

from moldau.log.interface import ControlEntry, ControlKind
from moldau.model.ids import Offset, RaftIndex


class ControlEntries:
    """Control entries from ordinal `base` on; the first `base` are below the log's start."""

    __slots__ = ("_indexes", "_offsets", "base", "count", "entries", "last_offset")

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.count = base
        """Ordinal that the next control entry will get."""
        self.entries: list[ControlEntry] = []
        self.last_offset = Offset(-1)
        """Offset of the last entry: from there on the conversion is one addition."""
        self._offsets: list[Offset] = []
        self._indexes: list[int] = []

    def append(self, entry: ControlEntry) -> None:
        if entry.offset < self.last_offset:
            raise ValueError(f"control entry at offset {entry.offset} after {self.last_offset}")
        self.entries.append(entry)
        self._offsets.append(entry.offset)
        self._indexes.append(entry.offset + self.count)
        self.count += 1
        self.last_offset = entry.offset

    def before(self, offset: Offset) -> int:
        """How many control entries of the whole log precede the record at `offset`."""
        if offset >= self.last_offset:
            return self.count
        return self.base + bisect_right(self._offsets, offset)

    def index_of(self, offset: Offset) -> RaftIndex:
        """Raft index of the record at `offset`."""
        return RaftIndex(offset + self.before(offset))

    def locate(self, index: RaftIndex) -> tuple[Offset, int]:
        """Where a log truncated to `index` ends: its offset and number of control entries."""
        count = self.base + bisect_left(self._indexes, index)
        return Offset(index - count), count

    def truncate(self, count: int) -> None:
        """Keep the first `count` control entries of the log."""
        keep = max(0, count - self.base)
        del self.entries[keep:], self._offsets[keep:], self._indexes[keep:]
        self.count = self.base + len(self.entries)
        self.last_offset = self._offsets[-1] if self._offsets else Offset(-1)

    def below(self, offset: Offset) -> int:
        """How many control entries are below a log that starts at `offset`."""
        return self.base + bisect_left(self._offsets, offset)

    def voters_before(self, count: int, voters: bytes) -> bytes:
        """Payload of the last membership entry among the first `count`; otherwise `voters`."""
        for entry in reversed(self.entries[: count - self.base]):
            if entry.kind is ControlKind.MEMBERSHIP:
                return entry.payload
        return voters

    def drop_below(self, count: int) -> None:
        """Forget the first `count` control entries of the log; they keep their ordinals."""
        drop = count - self.base
        if drop > 0:
            del self.entries[:drop], self._offsets[:drop], self._indexes[:drop]
            self.base = count
