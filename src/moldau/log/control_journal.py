"""The control journal: the file with the control entries of a log.

Rules that keep journal and segments consistent through any crash (the log keeps the order of
calls):

- only the last entry may be unflushed, so only the last one can be torn or lost;
- data of the epoch that it begins may be written before it is flushed: recovery truncates batches
  of an unknown epoch. Before anything else is written, it is flushed;
- it counts as flushed only once all data before it is;
- truncation truncates the data first, then the journal;
- recovery drops entries beyond the recovered end of the data.

Entries carry their ordinal, so those below the log's start may stay in the file until it is
rewritten. The file is zero-filled in small steps: a flush then changes no metadata.
"""

import struct

from crc32c import crc32c

from moldau.log.filesystem import File, Files, write_all
from moldau.log.interface import ControlEntry, ControlKind
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset

_FRAME = struct.Struct(">II")
_BODY = struct.Struct(">qqiB")
_STEP_BYTES = 4096
PAYLOAD_BYTES_MAX = 1024 * 1024
REWRITE_DEAD_MIN = 64
"""Entries below the log's start that make a rewrite worthwhile."""


class JournalFlush:
    """The flush of a journal's last entry; runs in any thread."""

    __slots__ = ("directory", "file", "files", "ordinal")

    def __init__(self, files: Files, file: File, directory: str | None, ordinal: int) -> None:
        self.files = files
        self.file = file
        """Closed with the last reference: a thread may be flushing it."""
        self.directory = directory
        """Set if the file's name is new."""
        self.ordinal = ordinal

    def run(self) -> None:
        self.file.flush()
        if self.directory is not None:
            self.files.sync_dir(self.directory)


class ControlJournal:
    """The journal file of one log. Opened for each write, because elections are rare."""

    __slots__ = (
        "_directory",
        "_ends",
        "_files",
        "_first",
        "_is_name_in_doubt",
        "_is_torn",
        "_size",
        "path",
        "unflushed",
    )

    def __init__(self, files: Files, directory: str, generation: int) -> None:
        self._files = files
        self._directory = directory
        self.path = f"{directory}/control" + (f"-{generation}" if generation else "") + ".journal"
        self._first = 0
        """Ordinal of the first entry in the file."""
        self._ends: list[int] = []
        """Where each entry of the file ends."""
        self._size = -1
        """Bytes of the file; -1: there is none yet."""
        self._is_torn = False
        self._is_name_in_doubt = False
        """The file was found empty: a process that was killed may have made it just before."""
        self.unflushed: JournalFlush | None = None
        """The pending flush of the last entry."""

    @property
    def entry_count(self) -> int:
        """Entries in the file, those below the log's start included."""
        return len(self._ends)

    def begin(self) -> None:
        """Durably create an empty file: it marks that the log exists. Raises OSError."""
        self._files.open(self.path, create=True).close()
        self._files.sync_dir(self._directory)
        self._size = 0

    def load(self) -> tuple[int, list[ControlEntry]]:
        """Ordinal of the first entry, and all intact entries. A torn last one is left out."""
        if not self._files.exists(self.path):
            return 0, []
        data = self._files.read(self.path)
        self._size = len(data)
        entries: list[ControlEntry] = []
        position = 0
        while True:
            parsed = _parse(data, position)
            if parsed is None:
                break
            ordinal, entry, end = parsed
            if not entries:
                self._first = ordinal
            elif ordinal != self._first + len(entries):
                raise self._damaged(position, f"entry {ordinal} is out of order")
            entries.append(entry)
            self._ends.append(end)
            position = end
        self._is_name_in_doubt = not entries
        # An entry may end in zeros, so only the search ends where nothing but zeros is left.
        rest = data[position:].rstrip(b"\0")
        for at in range(position + 1, position + len(rest)):
            if _parse(data, at) is not None:
                raise self._damaged(position, "a bad entry is followed by a good one")
        # A torn entry was never flushed. truncate() removes it once the rest of the log is
        # verified, so that nothing of it remains behind the next entry.
        self._is_torn = bool(rest)
        return self._first, entries

    def append(self, ordinal: int, entry: ControlEntry) -> None:
        """Write one entry, unflushed. Raises OSError; a full disk leaves the file unchanged."""
        data = _encode(ordinal, entry)
        position = self._ends[-1] if self._ends else 0
        end = position + len(data)
        is_new = self._size < 0
        file = self._files.open(self.path, create=is_new)
        if end > self._size:
            size = -(-end // _STEP_BYTES) * _STEP_BYTES
            self._write_all(file, data + bytes(size - end), position)
            self._size = size
        else:
            self._write_all(file, data, position)
        directory = self._directory if is_new or self._is_name_in_doubt else None
        self._is_name_in_doubt = False
        self.unflushed = JournalFlush(self._files, file, directory, ordinal)
        if not self._ends:
            self._first = ordinal
        self._ends.append(end)

    def flush(self) -> None:
        """Flush now if needed. Raises OSError."""
        if self.unflushed is not None:
            self.unflushed.run()
            self.unflushed = None

    def forget_below(self, count: int) -> None:
        """The log's start now contains what the entries below ordinal `count` contained."""
        if self.unflushed is not None and self.unflushed.ordinal < count:
            self.unflushed = None

    def flush_found(self) -> None:
        """Flush what load() read: a killed process may have left it in the page cache only."""
        if self._ends:
            file = self._files.open(self.path)
            file.flush()
            file.close()

    def _write_all(self, file: File, data: bytes, position: int) -> None:
        """Write at the end, or leave the file unchanged and raise."""
        old_size = max(self._size, 0)
        try:
            write_all(file, data, position)
        except OSError:
            # The file ends here now, or the zeros ahead are zeros again.
            file.truncate(position)
            self._size = min(old_size, position)
            raise

    def truncate(self, count: int) -> None:
        """Keep entries below ordinal `count`, and nothing torn; durable when it returns."""
        keep = max(0, count - self._first)
        if self._size < 0 or (keep >= len(self._ends) and not self._is_torn):
            return
        del self._ends[keep:]
        position = self._ends[-1] if self._ends else 0
        file = self._files.open(self.path)
        try:
            file.truncate(position)
            file.flush()
        finally:
            file.close()
        self._size = position
        self._is_torn = False
        self.unflushed = None

    def rewrite(self, first: int, entries: list[ControlEntry]) -> None:
        """Replace the file by one with only these entries; atomic and durable."""
        data = bytearray()
        ends = []
        for ordinal, entry in enumerate(entries, first):
            data += _encode(ordinal, entry)
            ends.append(len(data))
        self._files.replace(self.path, bytes(data))
        self._first, self._ends, self._size = first, ends, len(data)
        self.unflushed = None

    def _damaged(self, position: int, what: str) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: corrupt at byte {position}: {what}. Nothing was changed or deleted. "
            f"Restore the file from a backup, or the whole partition from a replica."
        )


def _encode(ordinal: int, entry: ControlEntry) -> bytes:
    body = _BODY.pack(ordinal, entry.offset, entry.epoch, entry.kind) + entry.payload
    return _FRAME.pack(len(body), crc32c(body)) + body


def _parse(data: bytes, position: int) -> tuple[int, ControlEntry, int] | None:
    """Ordinal, entry and its end, or None if there is no intact entry at `position`."""
    if position + _FRAME.size + _BODY.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, position)
    start = position + _FRAME.size
    end = start + length
    if not _BODY.size <= length <= _BODY.size + PAYLOAD_BYTES_MAX or end > len(data):
        return None
    body = data[start:end]
    if crc32c(body) != crc:
        return None
    ordinal, offset, epoch, kind = _BODY.unpack_from(body)
    try:
        control_kind = ControlKind(kind)
    except ValueError:
        return None
    entry = ControlEntry(Epoch(epoch), control_kind, Offset(offset), body[_BODY.size :])
    return ordinal, entry, end
