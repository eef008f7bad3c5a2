"""One segment: a file of batches, its index, its flush mark.

The file begins with a page for the mark (flush_mark.py); batches follow without gaps, as they came
over the wire. Beyond the last batch there may be zeros, written ahead so that a flush changes no
metadata.
"""

import re

from moldau.log.filesystem import File, Files
from moldau.log.flush_mark import HEADER_BYTES, SLOT_BYTES, FlushMark, decode_mark, encode_mark
from moldau.log.index import SegmentIndex, read_index
from moldau.log.read_failure import NO_DESCRIPTOR
from moldau.log.scan import walk_batches, walk_headers
from moldau.model.errors import CorruptionError
from moldau.model.ids import NO_TIMESTAMP, Offset, TimestampMs

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
_NAME = re.compile(r"^(\d{20})(?:-([1-9]\d*))?(?:\.([1-9]\d*))?\.log$")
_HEADER_CHUNK_BYTES = 4096
"""Scans from an index entry are short."""


def segment_name(base_offset: Offset, generation: int, compaction_round: int = 0) -> str:
    """Name without suffix; sorts like the offset. The generation counts resets of the log, the
    round distinguishes compacted segments from each other and from those that they replace."""
    name = f"{base_offset:020d}" + (f"-{generation}" if generation else "")
    return name + (f".{compaction_round}" if compaction_round else "")


class Segment:
    """One segment file. `position` is where the next batch would go."""

    __slots__ = (
        "_file",
        "_files",
        "_free_slot",
        "_is_mark_volatile",
        "_path",
        "base_offset",
        "checked",
        "compaction_round",
        "end_offset",
        "first_timestamp",
        "generation",
        "index",
        "max_timestamp",
        "old_end",
        "position",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: Offset,
        *,
        generation: int,
        index_interval: int,
        compaction_round: int = 0,
    ) -> None:
        self._files = files
        self._path = f"{directory}/{segment_name(base_offset, generation, compaction_round)}"
        self.generation = generation
        self.compaction_round = compaction_round
        self._file: File | None = None
        self._free_slot = 0
        self._is_mark_volatile = False
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.position = HEADER_BYTES
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.index = SegmentIndex(HEADER_BYTES, index_interval)
        self.old_end = HEADER_BYTES
        """Batches below this position existed when the log was opened: checked when read."""
        self.checked: list[tuple[int, int]] = []
        """Position ranges below old_end that have been checked, ascending and disjoint."""

    def opened(
        self,
        position: int,
        end_offset: Offset,
        first: TimestampMs,
        largest: TimestampMs,
        index: SegmentIndex | None = None,
    ) -> None:
        """Set what is known about the file from its mark or from recovery."""
        self.position = self.old_end = position
        self.end_offset = end_offset
        self.first_timestamp = first
        self.max_timestamp = largest
        self.index = index or SegmentIndex(position, self.index.interval)

    @property
    def path(self) -> str:
        return self._path + SEGMENT_SUFFIX

    @property
    def paths(self) -> tuple[str, str]:
        """Its files, in the order of removal."""
        return self._path + INDEX_SUFFIX, self._path + SEGMENT_SUFFIX

    @property
    def data_bytes(self) -> int:
        return self.position - HEADER_BYTES

    def file(self) -> File:
        """The open file; opened on first use, so that idle partitions need no descriptor."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    @property
    def opened_file(self) -> File | None:
        """The open file, if it is open."""
        return self._file

    def open_again(self) -> File:
        """The file, opened a second time. Changes nothing: any thread may call it."""
        return self._files.open(self.path)

    def adopt_file(self, file: File) -> None:
        """Use what open_again opened, unless the file is open."""
        if self._file is None:
            self._file = file

    def create(self) -> File:
        """Create the file; its name is durable after the next sync of the directory."""
        self._file = self._files.open(self.path, create=True)
        if self._file.size():
            # Left by a crash before its name was durable: nothing in it was acknowledged.
            self._file.truncate(0)
        return self._file

    def close_file(self) -> None:
        """Drop the descriptor; the next use opens the file again."""
        self._file = None

    def release(self) -> None:
        """Drop the descriptor and the index of a closed segment. A slice being sent has a reference
        of its own, so the file is not closed here."""
        self._file = None
        self.index = SegmentIndex(self.position, self.index.interval)

    def read_mark(self) -> FlushMark | None:
        """The newest intact mark in the file."""
        mark, self._free_slot = decode_mark(self.file().pread(HEADER_BYTES, 0), self.base_offset)
        return mark

    def write_mark(self, mark: FlushMark) -> None:
        """Durable after the next flush of the file, which mark_flushed confirms."""
        self.file().pwrite(encode_mark(mark), self._free_slot)
        self._is_mark_volatile = True

    def mark_flushed(self) -> None:
        """The last mark is durable: the next one goes into the other slot."""
        if self._is_mark_volatile:
            self._free_slot = SLOT_BYTES - self._free_slot
            self._is_mark_volatile = False

    def flush(self) -> None:
        """Flush the file and its mark now."""
        self.file().flush()
        self.mark_flushed()

    def remove(self) -> None:
        """Delete the files."""
        for path in self.paths:
            if self._files.exists(path):
                self._files.remove(path)
        self._file = None

    # ---- lookups

    def loaded_index(self) -> SegmentIndex:
        """The complete index: from its file where that is valid, otherwise from the batches."""
        end = self.index.loaded_from
        if end > HEADER_BYTES:
            self.index.adopt(self.read_index(self.file(), end), end)
        return self.index

    def read_index(self, file: File, end: int) -> SegmentIndex:
        """The entries before `end`, from the disk. Changes nothing: any thread may call it."""
        path = self._path + INDEX_SUFFIX
        try:
            data = self._files.read(path) if self._files.exists(path) else b""
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            # The batches say the same.
            data = b""
        return read_index(data, file, self.base_offset, end, self.index.interval)

    def save_index(self, covered_to: int) -> None:
        """Append the entries for flushed data up to `covered_to` to the index file."""
        index = self.loaded_index()
        if covered_to <= index.saved_to:
            return
        file = self._files.open(self._path + INDEX_SUFFIX, create=True)
        block = index.next_block(covered_to, self.base_offset)
        if file.pwrite(block, index.file_bytes) == len(block):
            index.saved(covered_to, len(block))
        file.close()

    def remove_index(self) -> None:
        path = self._path + INDEX_SUFFIX
        if self._files.exists(path):
            self._files.remove(path)

    def position_of(self, offset: Offset) -> tuple[Offset, int]:
        """Base offset and position of the batch that contains `offset`, or of the next one."""
        if offset >= self.end_offset:
            return self.end_offset, self.position
        index = self.index
        entry = index.floor_offset(offset)
        if entry is None and index.loaded_from > HEADER_BYTES:
            entry = self.loaded_index().floor_offset(offset)
        base, position = entry or (self.base_offset, HEADER_BYTES)
        if base == offset:
            return base, position
        for place, header in walk_headers(
            self.file(), position, self.position, chunk_bytes=_HEADER_CHUNK_BYTES
        ):
            if header.next_offset > offset:
                return header.base_offset, place
        raise self.damaged(position, "no batch contains an offset that the index lists")

    def position_near(self, offset: Offset) -> int | None:
        """Where a batch begins at or shortly before `offset`, without a look at the disk; None if
        the index has to be loaded for that."""
        entry = self.index.floor_offset(offset)
        if entry is not None:
            return entry[1]
        is_known = offset <= self.base_offset or self.index.loaded_from <= HEADER_BYTES
        return HEADER_BYTES if is_known else None

    def boundary_before(self, position: int, limit: int) -> tuple[Offset, int]:
        """Last batch boundary after the batch at `position` and not beyond `limit`; the end of
        that batch if it alone reaches further."""
        entry = self.index.floor_position(limit)
        if entry is None and self.index.loaded_from > HEADER_BYTES:
            entry = self.loaded_index().floor_position(limit)
        if entry is not None and entry[1] > position:
            return entry
        reached: tuple[Offset, int] | None = None
        for place, header in walk_headers(
            self.file(), position, self.position, chunk_bytes=_HEADER_CHUNK_BYTES
        ):
            end = place + header.size
            if reached is not None and end > limit:
                break
            reached = (header.next_offset, end)
        if reached is None:
            raise self.damaged(position, "no batch header where one was written")
        return reached

    # ---- checksums

    def check(self, position: int, end: int) -> None:
        """Check, once, batches that existed before this start. Raises CorruptionError."""
        end = min(end, self.old_end)
        position = self._checked_from(position)
        if position >= end:
            return
        reached = position
        for placed, _ in walk_batches(self.file(), position, end):
            reached = placed.position + placed.header.size
        if reached < end:
            raise self.damaged(reached, "checksum mismatch")
        self.note_checked(position, end)

    def is_checked(self, position: int, end: int) -> bool:
        """Whether `check` has nothing to do."""
        return self._checked_from(position) >= min(end, self.old_end)

    def _checked_from(self, position: int) -> int:
        """The end of the range from `position` on that was already checked."""
        for start, stop in self.checked:
            if start <= position < stop:
                return stop
        return position

    def note_checked(self, position: int, end: int) -> None:
        """The checksums of these batches match."""
        merged: list[tuple[int, int]] = []
        for start, stop in self.checked:
            if stop < position or start > end:
                merged.append((start, stop))
            else:
                position, end = min(start, position), max(stop, end)
        merged.append((position, end))
        merged.sort()
        self.checked = merged

    def damaged(self, position: int, what: str) -> CorruptionError:
        """The error for corrupt flushed data: where, what, and what the operator can do."""
        return CorruptionError(
            f"{self.path}: corrupt at byte {position}: {what}. Nothing was changed or deleted. "
            f"Restore the file from a replica or a backup; copy the whole directory first, to keep "
            f"every other batch readable."
        )

    def forget_beyond(self, position: int, end_offset: Offset) -> None:
        """The file was truncated to `position`."""
        self.position = position
        self.end_offset = end_offset
        self.old_end = min(self.old_end, position)
        self.checked = [(a, min(b, position)) for a, b in self.checked if a < position]
        self.index.truncate(position)


def find_segments(files: Files, directory: str, *, index_interval: int) -> list[Segment]:
    """Every segment with a file in the directory, by generation, base offset and round."""
    matches = (_NAME.match(name) for name in files.listdir(directory))
    found = sorted(
        (int(match[2] or 0), Offset(int(match[1])), int(match[3] or 0))
        for match in matches
        if match
    )
    return [
        Segment(
            files,
            directory,
            base,
            generation=generation,
            index_interval=index_interval,
            compaction_round=compaction_round,
        )
        for generation, base, compaction_round in found
    ]
