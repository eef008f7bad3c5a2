"""How many processes the limit of open files has room for.

Each process may open as many files as the limit says. Half of them are for its clients
(descriptors.py); the other half has to do for what it opens itself, for the links to the other
processes of its node, and for its logs: one file for each partition, and another one while it goes
on to its next segment, or is compacted.
"""

from pathlib import Path
from typing import Final

from moldau.log.datadir import list_partitions
from moldau.log.os_filesystem import OsFiles
from moldau.server.node.directories import directory_of, stored_processes

_OWN_FILES: Final = 64
"""Listeners, event loop, metadata, votes, and a few links to other nodes."""
_FILES_PER_SIBLING: Final = 4
"""A link each way, and a request each way, as for health and metrics."""
_FILES_PER_PARTITION: Final = 2


def partitions_stored(root: Path) -> int:
    """Of the process that has most of them."""
    return max(
        (_partitions_in(directory_of(root, number)) for number in stored_processes(root)), default=0
    )


def _partitions_in(directory: Path) -> int:
    try:
        return len(list_partitions(OsFiles(directory)))
    except OSError:
        # Not ours to read: the process that opens it says so.
        return 0


def processes_fitting(limit: int | None, partitions: int) -> int | None:
    """How many processes the limit has room for, at least 1; None: any number, without a limit."""
    if limit is None:
        return None
    left = limit // 2 - _OWN_FILES - _FILES_PER_PARTITION * partitions
    return 1 + max(0, left // _FILES_PER_SIBLING)


def files_problem(count: int, limit: int | None, partitions: int) -> str | None:
    """Why a limit has no room for so many processes, with so many partitions in one of them; None:
    it has."""
    fitting = processes_fitting(limit, partitions)
    if fitting is None or count <= fitting:
        return None
    own = _OWN_FILES + _FILES_PER_SIBLING * (count - 1) + _FILES_PER_PARTITION * partitions
    return (
        f"each may open {limit} files (ulimit -n), half of them for clients, which has room for "
        f"{fitting} with {partitions} partitions in one process; {count} need a limit of {2 * own}"
    )
