"""The data directories of a node: the root is that of its first process, and has the others in it.

So a node goes from one process to several without moving data, and one that is started with fewer
processes than it has brokers notices it: their replicas would be missing.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from moldau.log.datadir import kept_machine
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import ConfigError
from moldau.server.node.process import REMOVED_FILE

_NAME: Final = "process-{}"
_ENTRY: Final = re.compile(r"process-([2-9]|[1-9]\d+)")
_IDENTITY_FILE: Final = "broker.json"


class Stored(Struct, frozen=True):
    """What a process keeps in its directory."""

    broker_id: int | None
    cluster_id: str | None
    """None: it has not joined one yet, and so has no replicas."""
    is_removed: bool
    """Its broker has left the cluster for good."""


def directory_of(root: Path, number: int) -> Path:
    return root if number == 1 else root / _NAME.format(number)


def machine_of(root: Path, host_name: str) -> str:
    """Where the broker of process 1 is, and so all of them, if the configuration names no machine:
    what its directory keeps, or will keep from its first start on."""
    try:
        return kept_machine(OsFiles(root)) or host_name
    except OSError:
        # Process 1 says what is wrong.
        return host_name


def stored_processes(root: Path) -> dict[int, Stored]:
    """The brokers in a data root by the number of their process: those that have a directory."""
    numbers = [1]
    try:
        entries = [entry.name for entry in root.iterdir()]
    except OSError:
        # New, or not ours: the process that opens it says so.
        entries = []
    numbers += sorted(int(found[1]) for name in entries if (found := _ENTRY.fullmatch(name)))
    stored = ((number, _stored(directory_of(root, number))) for number in numbers)
    return {number: one for number, one in stored if one is not None}


def _stored(directory: Path) -> Stored | None:
    """The broker verifies the file itself, and explains what is wrong with it."""
    try:
        entry = json.loads((directory / _IDENTITY_FILE).read_bytes())
        number, cluster = entry["broker_id"], entry["cluster_id"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        number, cluster = None, ""
    return Stored(number, cluster, (directory / REMOVED_FILE).exists())


def processes_needed(stored: Mapping[int, Stored]) -> int:
    """The fewest processes that leave out no broker of the cluster."""
    return max((number for number, one in stored.items() if _has_data(one)), default=1)


def _has_data(one: Stored) -> bool:
    return one.cluster_id is not None and not one.is_removed


def check_directories(root: Path, stored: Mapping[int, Stored], count: int) -> None:
    """Raises ConfigError if processes are missing, or belong to different clusters."""
    left_out = [number for number, one in stored.items() if number > count and _has_data(one)]
    if left_out:
        number = left_out[-1]
        broker = stored[number].broker_id
        error = ConfigError(
            f"processes is {count}, but the data directory {root} has {processes_needed(stored)}: "
            f"the replicas of broker {broker} in {directory_of(root, number).name} would be missing"
        )
        error.hint = (
            f"start it with --processes {processes_needed(stored)}, and move them away first: "
            f"moldau broker remove {broker}"
        )
        raise error
    clusters = {
        one.cluster_id: number
        for number, one in sorted(stored.items(), reverse=True)
        if one.cluster_id and not one.is_removed
    }
    if len(clusters) > 1:
        (first, number), (second, other) = sorted(clusters.items(), key=lambda item: item[1])[:2]
        error = ConfigError(
            f"the data directory {root} mixes two clusters: {directory_of(root, number)} belongs "
            f"to {first}, and {directory_of(root, other)} to {second}"
        )
        error.hint = "put the directory back that belongs here, or choose another: --data-dir"
        raise error
