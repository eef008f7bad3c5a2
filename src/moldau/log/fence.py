"""Owns the fence in a data directory: a note that a flush failed, and what the next start does.

After a failed flush the kernel takes the pages for clean: they are shown to whoever reads them, but
no later flush brings them to the disk. A restart would find a whole log, flush it in vain, and
acknowledge what the next power cut takes. So the broker that ends leaves a fence, and the next one
first writes anew all that no earlier flush is known to have covered.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from moldau.log.filesystem import File, Files
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.segment import Segment, list_segments

FENCE_PATH: Final = "fence"
_JOURNAL: Final = re.compile(r"control(?:-\d+)?\.journal")
_CHUNK_BYTES: Final = 1024 * 1024


def write_fence(files: Files, reason: str) -> None:
    """Raises OSError where no file can be made.

    A disk that flushes nothing more does not matter: a power cut that takes the fence takes the
    page cache too, and with it what the fence is about. Nor does one that takes no bytes: the name
    says enough.
    """
    file = files.open(FENCE_PATH, create=True)
    with suppress(OSError):
        file.pwrite(reason.encode(), 0)
        file.flush()
        files.sync_dir("")
    file.close()


def read_fence(files: Files) -> str | None:
    """Why the last broker here ended, if its disk failed."""
    if not files.exists(FENCE_PATH):
        return None
    return files.read(FENCE_PATH).decode(errors="replace")


def rewrite_unflushed(files: Files, directories: Iterable[str], others: Iterable[str]) -> None:
    """Write anew what may not be on the disk: the ends of the logs in `directories`, and `others`,
    which are small files. Then the fence is gone. Raises OSError, and the fence stays."""
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
    """From the last mark on: what lies below was covered by a flush that did not fail."""
    segments = [
        Segment(
            files, directory, base, generation=generation, index_interval=1, clean_round=clean_round
        )
        for generation, base, clean_round in list_segments(files.listdir(directory))
    ]
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
    """The page of marks, and all from `position` on."""
    size = file.size()
    pieces = [(0, min(HEADER_BYTES, size))]
    pieces += [(at, min(at + _CHUNK_BYTES, size)) for at in range(position, size, _CHUNK_BYTES)]
    for start, end in pieces:
        data = file.pread(end - start, start)
        done = 0
        while done < len(data):
            done += file.pwrite(data[done:], start + done)
    file.flush()
