"""The fence file in a data directory: a flush failed, and the next start must rewrite data.

After a failed flush the kernel marks the pages clean: reads return them, but no later flush writes
them to the disk. A restart would find a complete log, flush it without effect, and acknowledge what
the next power failure loses. So the broker leaves a fence when it exits, and the next one first
rewrites everything that no earlier flush is known to have covered.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from moldau.log.filesystem import File, Files, write_all
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.segment import find_segments

FENCE_PATH: Final = "fence"
_JOURNAL: Final = re.compile(r"control(?:-\d+)?\.journal")
_CHUNK_BYTES: Final = 1024 * 1024


def write_fence(files: Files, reason: str) -> None:
    """Raises OSError if the file cannot be created.

    Its flush may fail: a power failure that loses the fence loses the page cache too, and with it
    the data in doubt. So may the write: an empty file is a fence as well.
    """
    file = files.open(FENCE_PATH, create=True)
    with suppress(OSError):
        file.pwrite(reason.encode(), 0)
        file.flush()
        files.sync_dir("")
    file.close()


def read_fence(files: Files) -> str | None:
    """Why the last broker exited, if its disk failed."""
    if not files.exists(FENCE_PATH):
        return None
    return files.read(FENCE_PATH).decode(errors="replace")


def rewrite_unflushed(files: Files, directories: Iterable[str], others: Iterable[str]) -> None:
    """Rewrite what may not be on the disk: the ends of the logs in `directories`, and the small
    files `others`; then remove the fence. Raises OSError, and the fence stays."""
    for directory in directories:
        if not files.exists(directory):
            continue
        _rewrite_segments(files, directory)
        for name in files.listdir(directory):
            if _JOURNAL.fullmatch(name):
                _rewrite_file(files, f"{directory}/{name}")
        files.sync_dir(directory)
    for path in others:
        if files.exists(path):
            _rewrite_file(files, path)
    files.remove(FENCE_PATH)
    files.sync_dir("")


def _rewrite_file(files: Files, path: str) -> None:
    files.replace(path, files.read(path))


def _rewrite_segments(files: Files, directory: str) -> None:
    """From the last flush mark on: what is below was covered by a successful flush."""
    segments = find_segments(files, directory, index_interval=1)
    marks = [segment.read_mark() for segment in segments]
    flushed = max(
        ((mark.sequence, mark.flushed_offset) for mark in marks if mark is not None),
        default=(0, 0),
    )[1]
    for place, (segment, mark) in enumerate(zip(segments, marks, strict=True)):
        if place + 1 < len(segments) and segments[place + 1].base_offset <= flushed:
            continue
        position = mark.flushed_position if mark is not None else 0
        _rewrite(segment.file(), max(position, HEADER_BYTES))


def _rewrite(file: File, position: int) -> None:
    """The page of flush marks, and everything from `position` on."""
    size = file.size()
    pieces = [(0, min(HEADER_BYTES, size))]
    pieces += [(at, min(at + _CHUNK_BYTES, size)) for at in range(position, size, _CHUNK_BYTES)]
    for start, end in pieces:
        write_all(file, file.pread(end - start, start), start)
    file.flush()
