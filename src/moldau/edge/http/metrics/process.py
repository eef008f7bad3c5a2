"""Metrics of the process from the operating system, under Prometheus' standard names."""

import os
import resource
from collections.abc import Iterator

from moldau.api.process_numbers import cpu_seconds, memory, started_at
from moldau.edge.http.metrics.table import family
from moldau.model.prometheus_text import MetricFamily


def process_families() -> Iterator[MetricFamily]:
    """CPU time everywhere; memory, file descriptors and start time where /proc exists."""
    yield family("process_cpu_seconds_total", cpu_seconds())
    used, started = memory(), started_at()
    if used is None or started is None:
        return
    yield family("process_resident_memory_bytes", used.resident_bytes)
    yield family("process_virtual_memory_bytes", used.virtual_bytes)
    yield family("process_start_time_seconds", started)
    used_files, most = open_files()
    if used_files >= 0:
        yield family("process_open_fds", used_files)
    if most >= 0:
        yield family("process_max_fds", most)


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
