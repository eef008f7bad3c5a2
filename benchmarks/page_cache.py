"""Drops files from the page cache, so that a reader reads from the disk. Needs no root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

PROBE_BYTES = 1 << 20
LOG_SUFFIX = ".log"
"""Of segments, ours and Kafka's."""


def drop(folders: Iterable[Path]) -> float:
    """Write files back and drop them; the share of the logs still in memory, by samples.

    Indexes are not counted: a broker has them mapped, and mapped pages stay.
    """
    probed = cached = 0
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            number = os.open(path, os.O_RDONLY)
            try:
                # Only clean pages are dropped.
                os.fdatasync(number)
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
                size = os.fstat(number).st_size if path.suffix == LOG_SUFFIX else 0
                for at in range(0, size, PROBE_BYTES):
                    probed += 1
                    cached += is_cached(number, at)
            finally:
                os.close(number)
    return cached / max(1, probed)


def is_cached(number: int, at: int) -> bool:
    """Whether a byte of an open file can be read without the disk."""
    try:
        os.preadv(number, [bytearray(1)], at, os.RWF_NOWAIT)
    except OSError as error:
        # A file system that cannot tell (tmpfs) keeps its files in memory.
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
        return error.errno == errno.EOPNOTSUPP
    return True
