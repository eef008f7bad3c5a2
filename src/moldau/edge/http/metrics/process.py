"""Metrics of the process from the operating system, under Prometheus' standard names."""

import os
import resource
from collections.abc import Iterator

from moldau.edge.http.metrics.table import family
from moldau.model.prometheus_text import MetricFamily

_START_TICKS_FIELD = 19
"""Of /proc/self/stat, counted after the command's name."""


def process_families() -> Iterator[MetricFamily]:
    """CPU time everywhere; memory, file descriptors and start time where /proc exists."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield family("process_cpu_seconds_total", used.ru_utime + used.ru_stime)
    try:
        yield from _from_proc()
    except OSError:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        yield family("process_max_fds", soft)


def open_files() -> tuple[int, int]:
    """Open file descriptors and their limit; -1 for what the system does not say or limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = -1 if soft == resource.RLIM_INFINITY else soft
    try:
        return _open_fds(), most
    except OSError:
        return -1, most


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def _from_proc() -> Iterator[MetricFamily]:
    with open("/proc/self/statm", "rb") as file:
        size, resident = (int(pages) for pages in file.read().split()[:2])
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    with open("/proc/stat", "rb") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
    page = os.sysconf("SC_PAGE_SIZE")
    started = booted + int(fields[_START_TICKS_FIELD]) / os.sysconf("SC_CLK_TCK")
    yield family("process_resident_memory_bytes", resident * page)
    yield family("process_virtual_memory_bytes", size * page)
    yield family("process_open_fds", _open_fds())
    yield family("process_start_time_seconds", started)
