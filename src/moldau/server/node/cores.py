"""How many cores this process may use: by its affinity, and the CPU quota of its control group."""

import os
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, process: Path = Path("/proc/self/cgroup")) -> int:
    """At least 1. A quota counts as the cores that it fills."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not on this system.
        cores = os.cpu_count() or 1
    quota = cpu_quota(cgroups, process)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(cgroups: Path = _CGROUPS, process: Path = Path("/proc/self/cgroup")) -> float | None:
    """The cores that the tightest quota of this process and the groups above it is worth; None
    without one."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        is_v1 = "cpu" in controllers.split(",")
        if controllers and not is_v1:
            continue
        root = cgroups / "cpu" if is_v1 else cgroups
        # In a container the path may be one of the host: then the group at the root is ours.
        group = root / path.lstrip("/")
        for place in (group, *group.parents):
            limit = _quota_v1(place) if is_v1 else _quota_v2(place)
            if limit is not None:
                found.append(limit)
            if place == root:
                break
    return min(found, default=None)


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return None if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return None
