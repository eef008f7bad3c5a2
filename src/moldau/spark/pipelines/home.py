"""The home of a pipeline: a folder, or a prefix of an object store.

checkpoint/   Spark's checkpoint                   start.json    where to start after a reset
old/          checkpoints before a reset           lock          locked while the pipeline runs
"""

import fcntl
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.source.positions import Positions

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

_LOCK: Final = "lock"
_START: Final = "start.json"
_USED: Final = "start.used.json"
_CHECKPOINT: Final = "checkpoint"
Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition, as in the option startingOffsets."""


class BusyError(ClientError):
    """The pipeline is already running."""


class CheckpointError(ClientError):
    """A checkpoint is missing or corrupt."""


def check_name(name: str) -> str:
    """Returns the name if it is valid: it becomes a folder and a consumer group."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not a valid pipeline name",
            hint="--name accepts up to 100 letters, digits, dots, dashes and underscores",
        )
    return name


def home_at(root: str, name: str) -> str:
    """The home of a pipeline below `root`."""
    return f"{normal_location(root, option='--home')}/{name}"


class Home:
    """The home of one pipeline, whose name is the last part of the location."""

    def __init__(self, location: str | Path) -> None:
        self.location = normal_location(str(location), option="--home")
        self.name = check_name(self.location.rpartition("/")[2])
        self._folder = folder_at(self.location, {})

    @property
    def exists(self) -> bool:
        """Whether a pipeline ran here; other folders do not count."""
        is_used = self._folder.read(_LOCK) is not None
        return is_used or next(self._folder.list(_CHECKPOINT), None) is not None

    @property
    def is_local(self) -> bool:
        return self._folder.is_local

    @property
    def checkpoint(self) -> Folder:
        return folder_at(f"{self.location}/{_CHECKPOINT}", {})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks it for this process; the lock ends with the process.

        Raises BusyError if another process has the lock. An object store has no locks: there, only
        the status topic shows whether a pipeline of this name runs.
        """
        if not self._folder.is_local:
            # Not a lock, but marks the prefix as the home of a pipeline.
            self._folder.write(_LOCK, b"")
            yield
            return
        # Private: state may contain data of records.
        Path(self.location).mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(Path(self.location) / _LOCK, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(
                    f"pipeline {self.name} is already running on this machine",
                    hint=f"find its process: moldau pipeline status {self.name} · "
                    "stop it by Ctrl-C or SIGTERM · run another pipeline: --name NAME",
                ) from error
            yield

    def check_idle(self) -> None:
        """Raises BusyError while it runs on this machine. Creates no lock file."""
        if Path(self.location, _LOCK).is_file():
            with self.locked():
                pass

    def delete(self) -> None:
        with self.locked():
            self._folder.delete_all()

    # -- the start after a reset

    def read_start(self) -> Offsets:
        """The offsets of the last reset; empty without one. Raises ClientError."""
        try:
            found: Offsets = json.loads(self._folder.read(_START) or b"{}")
            return found
        except ValueError as error:
            raise ClientError(f"{self.location}/{_START} is corrupt: {error}") from None

    def use_start(self) -> None:
        """Marks the last reset as used: it must not excuse a checkpoint that is lost later."""
        if (start := self._folder.read(_START)) is not None:
            self._folder.write(_USED, start)

    def has_new_start(self) -> bool:
        """Whether there is a reset that was not used yet."""
        start = self._folder.read(_START)
        return start is not None and start != self._folder.read(_USED)

    def reset(self, offsets: Offsets) -> str | None:
        """Makes the next run start at `offsets`. Moves the checkpoint, and returns where to."""
        with self.locked():
            # The start first: a reset that is interrupted can then be repeated.
            self._folder.delete(_USED)
            self._folder.write(_START, json.dumps(offsets).encode())
            if next(self._folder.list(_CHECKPOINT), None) is None:
                return None
            # To the microsecond, for a unique name.
            old = f"old/{_CHECKPOINT}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
            self._folder.move_all(_CHECKPOINT, old)
            return f"{self.location}/{old}"


# -- reading Spark's checkpoint


def query_id(checkpoint: Folder) -> str:
    """The query id in a checkpoint; restarts do not change it."""
    found = checkpoint.read("metadata")
    if found is None:
        raise CheckpointError(f"the checkpoint {checkpoint.location} has no query id")
    try:
        return str(json.loads(found)["id"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} is corrupt: {error!r}",
            hint="start over: moldau pipeline reset NAME --to earliest",
        ) from error


def batches_in(checkpoint: Folder, folder: str) -> list[int]:
    """The numbers of the batches in `offsets` (started) or in `commits` (done)."""
    names = [found.path.rpartition("/")[2] for found in checkpoint.list(folder)]
    return sorted(int(name) for name in names if name.isdecimal())


def committed_positions(checkpoint: Folder) -> Mapping[TopicPartition, int]:
    """The next offset of every partition; empty before the first batch, or if it is corrupt."""
    done = batches_in(checkpoint, "commits")
    text = checkpoint.read(f"offsets/{done[-1]}") if done else None
    try:
        # A version, a line about the batch, and one for the source.
        return Positions.from_json(json.loads((text or b"").splitlines()[2])).offsets
    except (ValueError, IndexError, InvalidArgumentError):
        return {}


def planned_reset(
    client: KafkaClient, home: Home, target: int | dict[TopicPartition, int], topics: Iterable[str]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    """The changes of a reset as table rows; and the offsets for `Home.reset`, where -2 remains the
    earliest.

    `target` is a timestamp in ms, earliest or latest for all partitions; or offsets of some, while
    others stay. `topics` are those of the settings, for a checkpoint that is lost.
    """
    before = committed_positions(home.checkpoint)
    named = target if isinstance(target, dict) else {}
    names = {tp.topic for tp in (*before, *named)} or set(topics)
    if not names:
        raise InvalidArgumentError(
            f"pipeline {home.name} has no offsets to reset",
            hint=f"this kind stores none, or its first batch is not done yet; see {home.location}",
        )
    partitions = {
        TopicPartition(topic, PartitionIndex(number))
        for topic in names
        for number in client.layout(topic).leaders
    }
    rows: list[dict[str, Any]] = []
    starts: dict[str, dict[str, int]] = {}
    for tp in sorted({*partitions, *named}):
        first, end = client.list_offset(*tp, OFFSET_EARLIEST), client.list_offset(*tp)
        now, start = before.get(tp), OFFSET_EARLIEST
        if isinstance(target, dict):
            start = target.get(tp, start if now is None else now)
        elif target != OFFSET_EARLIEST:
            found = client.list_offset(*tp, target)
            start = end if found < 0 else found
        if tp in named and not first <= start <= end:
            raise InvalidArgumentError(
                f"{tp.topic}:{tp.partition} has no offset {start}",
                hint=f"it has offsets {first} to {end - 1}; {end} is the next one",
            )
        new = first if start == OFFSET_EARLIEST else start
        row = {"topic": tp.topic, "partition": tp.partition, "now": now, "new": new}
        rows.append({**row, "change": None if now is None else new - now})
        starts.setdefault(tp.topic, {})[str(tp.partition)] = start
    return rows, starts
