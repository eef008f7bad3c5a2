"""What runs in the flush thread: the flush of a log's files, and zeros written ahead.

An fdatasync that changes no metadata is fast even on a busy disk, so with flush=always the file is
zero-filled ahead of its end. The zeros are written here, off the event loop, while the log keeps
appending before them; if it catches up, it cancels the zero-fill first. That is the only lock in
this package.
"""

import errno
import threading
from collections.abc import Sequence
from contextlib import suppress

from moldau.log.control_journal import JournalFlush
from moldau.log.filesystem import File, Files
from moldau.log.os_filesystem import OsFile
from moldau.log.segment import Segment
from moldau.model.ids import Offset

CHUNK_BYTES = 256 * 1024
_ZEROS = bytes(CHUNK_BYTES)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class ZeroFill:
    """Zeros to be written from `start` to `end` of a file."""

    __slots__ = ("_cancelled", "_lock", "end", "file", "start")

    def __init__(self, file: File, start: int, end: int) -> None:
        self.file = file
        self.start = start
        self.end = end
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Write the zeros in chunks. A full disk ends it: they are only for speed."""
        position = self.start
        while position < self.end:
            with self._lock:
                if self._cancelled:
                    return
                size = min(CHUNK_BYTES, self.end - position)
                try:
                    position += self.file.pwrite(memoryview(_ZEROS)[:size], position)
                except OSError as error:
                    if error.errno in DISK_FULL:
                        self._cancelled = True
                        return
                    raise

    def cancel(self) -> None:
        """No zeros are written after this returns."""
        with self._lock:
            self._cancelled = True

    @property
    def is_done(self) -> bool:
        """Valid after run() only."""
        return not self._cancelled


class DataFlush:
    """The flush of a log's segments, and what it covers."""

    __slots__ = (
        "_closed_files",
        "_directory",
        "_file",
        "_files",
        "closed",
        "fill",
        "names",
        "offset",
        "position",
        "segment",
    )

    def __init__(
        self,
        *,
        files: Files,
        directory: str | None,
        names: int,
        closed: Sequence[Segment],
        segment: Segment,
        fill: ZeroFill | None,
    ) -> None:
        self._files = files
        self._directory = directory
        self.names = names
        self.closed = list(closed)
        self._closed_files = [closed_segment.file() for closed_segment in closed]
        self._file = segment.file()
        self.segment = segment
        self.offset: Offset = segment.end_offset
        self.position = segment.position
        self.fill = fill

    @property
    def descriptor(self) -> int | None:
        """Of the file, if to sync it is all that run() does."""
        if self._closed_files or self.fill is not None or self._directory is not None:
            return None
        file = self._file
        # Other kinds of files do more in flush(), or have no descriptor.
        if type(file) is not OsFile:
            return None
        # A log that was closed meanwhile: run() reports it.
        with suppress(ValueError):
            return file.fileno()
        return None

    def run(self) -> None:
        # Older segments first: a mark must not survive without the data that it describes.
        for file in self._closed_files:
            file.flush()
        if self.fill is not None:
            self.fill.run()
        self._file.flush()
        if self._directory is not None:
            self._files.sync_dir(self._directory)


class DiskFlush:
    """One flush of a log: of its last control entry, of its data, or of both in that order."""

    __slots__ = ("data", "failures", "journal", "truncations")

    def __init__(
        self,
        *,
        journal: JournalFlush | None,
        data: DataFlush | None,
        truncations: int,
        failures: list[OSError],
    ) -> None:
        self.journal = journal
        self.data = data
        self.truncations = truncations
        self.failures = failures
        """Of the log: a failed flush is added."""

    @property
    def is_heavy(self) -> bool:
        """Writes zeros ahead as well: must not run on the event loop."""
        return self.data is not None and self.data.fill is not None

    @property
    def descriptor(self) -> int | None:
        return None if self.journal is not None or self.data is None else self.data.descriptor

    def failed(self, error: OSError) -> None:
        # The log rejects everything from now on: the state of the page cache is unknown.
        self.failures.append(error)

    def run(self) -> None:
        try:
            # Data counts as flushed only together with the control entries before it.
            if self.journal is not None:
                self.journal.run()
            if self.data is not None:
                self.data.run()
        except OSError as error:
            self.failed(error)
            raise
