"""What the operating system says of this process; None for what it does not say."""

import os
import resource
from functools import cache
from typing import Final, NamedTuple

_START_TICKS_FIELD: Final = 19
"""Of /proc/self/stat, counted after the command's name."""


class Memory(NamedTuple):
    virtual_bytes: int
    resident_bytes: int


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory() -> Memory | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = (int(pages) for pages in file.read().split()[:2])
    except OSError:
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return Memory(virtual * page, resident * page)


@cache
def started_at() -> float | None:
    """In seconds since 1970."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
    except OSError:
        return None
    return booted + int(fields[_START_TICKS_FIELD]) / os.sysconf("SC_CLK_TCK")
