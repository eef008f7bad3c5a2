"""Prepares a read in a thread: afterwards the event loop reads without waiting for the disk.

The file is opened and the index loaded if they are not; batches that were not checked since the
start are checked, others are only read, so that they are in the page cache. A prefetch hands out no
data. The segment may be truncated, compacted or deleted while one runs: then its result is ignored
(end_check), and the read, on the loop, sees the log as it is then.
"""

from moldau.log.filesystem import File
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.index import SegmentIndex
from moldau.log.scan import CHUNK_BYTES, check_batches
from moldau.log.segment import Segment
from moldau.model.ids import Offset


def is_warm(segment: Segment, position: int, limit: int, bytes_max: int) -> bool:
    """Whether a read there needs neither the disk nor a check. Looks at memory only."""
    size = min(bytes_max, limit - position)
    if size <= 0:
        return True
    file = segment.opened_file
    return (
        file is not None
        and segment.is_checked(position, position + size)
        and not _needs_index(segment, position, limit, bytes_max)
        and file.is_cached(size, position)
    )


def _needs_index(segment: Segment, position: int, limit: int, bytes_max: int) -> bool:
    """Whether the end of a read is looked up in a part of the index that is not loaded."""
    index = segment.index
    return (
        index.loaded_from > HEADER_BYTES
        and limit - position > bytes_max
        and index.floor_position(position + bytes_max) is None
    )


class Prefetch:
    """Prepares a read of about bytes_max of one segment, nothing beyond `limit`."""

    __slots__ = (
        "_bytes_max",
        "_file",
        "_limit",
        "_old_end",
        "_position",
        "damage",
        "file",
        "index",
        "index_end",
        "next_offset",
        "reached",
        "segment",
        "start",
        "truncations",
    )

    def __init__(
        self,
        segment: Segment,
        offset: Offset,
        position: int | None,
        limit: int,
        bytes_max: int,
        truncations: int,
    ) -> None:
        """From `position` on; if that is None, from `offset`, which the index has to tell."""
        self.segment = segment
        self.next_offset = offset
        self._position = position
        self._limit = limit
        self._bytes_max = bytes_max
        self.truncations = truncations
        self._file = segment.opened_file
        self._old_end = segment.old_end
        self.file: File | None = None
        """Opened for this, if it was not open."""
        self.index: SegmentIndex | None = None
        """Entries before index_end, if they were not loaded."""
        is_needed = position is None or _needs_index(segment, position, limit, bytes_max)
        self.index_end = segment.index.loaded_from if is_needed else 0
        self.start = self.reached = HEADER_BYTES
        self.damage = ""
        """The error at `reached`; empty if there is none."""

    @property
    def size(self) -> int:
        """Bytes whose checksums matched."""
        return self.reached - self.start

    @property
    def bytes_max(self) -> int:
        """The largest part of a reply that it can be for."""
        if self._position is None:
            return self._bytes_max
        return min(self._bytes_max, self._limit - self._position)

    def run(self) -> None:
        segment = self.segment
        try:
            file = self._file
            if file is None:
                file = self.file = segment.open_again()
            position = self._position
            if self.index_end:
                self.index = segment.read_index(file, self.index_end)
                if position is None:
                    entry = self.index.floor_offset(self.next_offset)
                    position = entry[1] if entry is not None else HEADER_BYTES
        except OSError:
            # Deleted meanwhile, or too many open files: the read meets the error, and handles it.
            return
        self.start = self.reached = position = position or HEADER_BYTES
        end = min(position + self._bytes_max, self._limit)
        try:
            if not segment.is_checked(position, end):
                # Not beyond: what was written since the start needs no check, and may be in flux.
                old_end = min(end, self._old_end)
                self.reached = check_batches(file, position, old_end, self._old_end)
                if self.reached < old_end:
                    self.damage = "checksum mismatch"
                    return
            _touch(file, self.reached, end)
        except OSError as error:
            self.damage = f"cannot be read ({error})"


def _touch(file: File, position: int, end: int) -> None:
    """Read it into the page cache."""
    while position < end and file.pread(min(CHUNK_BYTES, end - position), position):
        position += CHUNK_BYTES
