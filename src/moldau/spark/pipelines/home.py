"""Responsible for the place of a pipeline: that it runs once at a time, and where it goes on.

A folder, or a prefix of an object store.

checkpoint/   how far it is: Spark's               start.json    where it begins, after a reset
old/          checkpoints before a reset           lock          held by the process that runs it
"""

import fcntl
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.pipelines.spec import PipelineSettings
from moldau.spark.source.positions import Positions

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

_LOCK: Final = "lock"
_START: Final = "start.json"
_USED: Final = "start.used.json"
_CHECKPOINT: Final = "checkpoint"
_START_OPTIONS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""In small letters: their case means nothing."""

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition, as the source's option startingOffsets has them."""


class BusyError(ClientError):
    """The pipeline runs already."""


class CheckpointError(ClientError):
    """A checkpoint that is not as it should be."""


def check_name(name: str) -> str:
    """The name, if it can be one: it is a folder and a consumer group."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a pipeline",
            hint="use up to 100 letters, digits, dots, dashes and underscores, with --name",
        )
    return name


def home_at(root: str, name: str) -> str:
    """The place of a pipeline below that of all."""
    return f"{normal_location(root, option='--home')}/{name}"


class Home:
    """The place of one pipeline, whose name is the last part of it."""

    def __init__(self, location: str | Path) -> None:
        self.location = normal_location(str(location), option="--home")
        self.name = check_name(self.location.rpartition("/")[2])
        self._folder = folder_at(self.location, {})

    @property
    def exists(self) -> bool:
        """Whether a pipeline ran here. A folder of somebody else's is none."""
        is_used = self._folder.read(_LOCK) is not None
        return is_used or next(self._folder.list(_CHECKPOINT), None) is not None

    @property
    def is_local(self) -> bool:
        return self._folder.is_local

    @property
    def checkpoint(self) -> Folder:
        return folder_at(f"{self.location}/{_CHECKPOINT}", {})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the process that uses it; the lock goes with the process, however that ends.

        Raises BusyError if another one does. An object store has no locks: there, what pipelines
        tell the brokers is all that keeps two of one name apart.
        """
        if not self._folder.is_local:
            # Locks nobody, but says that there is a pipeline.
            self._folder.write(_LOCK, b"")
            yield
            return
        # What is in it may be about records: for nobody else's eyes.
        Path(self.location).mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(Path(self.location) / _LOCK, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(
                    f"pipeline {self.name} is running on this machine",
                    hint=f"which process: moldau pipeline status {self.name} · "
                    "end it by Ctrl-C or SIGTERM · another pipeline: --name NAME",
                ) from error
            yield

    def check_idle(self) -> None:
        """Raises BusyError while it runs here. Makes no lock."""
        if Path(self.location, _LOCK).is_file():
            with self.held():
                pass

    def delete(self) -> None:
        with self.held():
            self._folder.delete_all()

    # -- where it begins

    def read_start(self) -> Offsets:
        """Where the last reset said to begin; empty without one. Raises ClientError."""
        try:
            found: Offsets = json.loads(self._folder.read(_START) or b"{}")
            return found
        except ValueError as error:
            raise ClientError(f"{self.location}/{_START} cannot be read: {error}") from None

    def use_start(self) -> None:
        """A reset was followed: for a checkpoint that is lost later, it says nothing any more."""
        if (start := self._folder.read(_START)) is not None:
            self._folder.write(_USED, start)

    def has_new_start(self) -> bool:
        """Whether a reset said where to begin, and nobody has begun there yet."""
        start = self._folder.read(_START)
        return start is not None and start != self._folder.read(_USED)

    def reset(self, offsets: Offsets) -> str | None:
        """Begin at `offsets`. The checkpoint is moved aside; returns where it is now."""
        with self.held():
            # First where to begin: a reset that is cut short is then repeated, not half of one.
            self._folder.delete(_USED)
            self._folder.write(_START, json.dumps(offsets).encode())
            if next(self._folder.list(_CHECKPOINT), None) is None:
                return None
            # To the microsecond: each has a name of its own.
            old = f"old/{_CHECKPOINT}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
            self._folder.move_all(_CHECKPOINT, old)
            return f"{self.location}/{old}"


# -- what a checkpoint of Spark's says


def query_id(checkpoint: Folder) -> str:
    """The query of a checkpoint: the same however often it is started."""
    found = checkpoint.read("metadata")
    if found is None:
        raise CheckpointError(f"the checkpoint {checkpoint.location} has no query")
    try:
        return str(json.loads(found)["id"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} cannot be read: {error!r}",
            hint="begin again: moldau pipeline reset NAME --to earliest",
        ) from error


def batches_in(checkpoint: Folder, folder: str) -> list[int]:
    """The numbers of batches that are still in `offsets` (begun) or in `commits` (done)."""
    names = [found.path.rpartition("/")[2] for found in checkpoint.list(folder)]
    return sorted(int(name) for name in names if name.isdecimal())


def committed_positions(checkpoint: Folder) -> Mapping[TopicPartition, int]:
    """The next offset of every partition; empty before the first batch, or if it cannot be read."""
    done = batches_in(checkpoint, "commits")
    text = checkpoint.read(f"offsets/{done[-1]}") if done else None
    try:
        # A version, a line about the batch, and one for the source.
        return Positions.from_json(json.loads((text or b"").splitlines()[2])).offsets
    except (ValueError, IndexError, InvalidArgumentError):
        return {}


# -- after a reset


def begun_at(settings: PipelineSettings, home: Home) -> PipelineSettings:
    """The settings with where the last reset said to begin, which a checkpoint goes before."""
    start, topics = home.read_start(), getattr(settings, "topics", ())
    if not set(topics) & set(start):
        # It reads something else now, of which the reset said nothing.
        return settings
    with KafkaClient(settings.bootstrap) as client:
        offsets = {
            topic: {
                # Partitions that were added since are read from their first record on.
                str(number): start.get(topic, {}).get(str(number), OFFSET_EARLIEST)
                for number in client.layout(topic).leaders
            }
            for topic in topics
        }
    options = {n: v for n, v in settings.options.items() if n.lower() not in _START_OPTIONS}
    return replace(settings, options={**options, "startingOffsets": json.dumps(offsets)})


def planned_reset(
    client: KafkaClient, home: Home, target: int | dict[TopicPartition, int], topics: Iterable[str]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    """What a reset changes, for people; and for `Home.reset`, where -2 stays the first there is.

    `target` is a time in ms or an end of the log, for all; or offsets, and others stay. `topics`
    are those of its settings: a checkpoint that is lost names none.
    """
    before = committed_positions(home.checkpoint)
    named = target if isinstance(target, dict) else {}
    names = {place.topic for place in (*before, *named)} or set(topics)
    if not names:
        raise InvalidArgumentError(
            f"pipeline {home.name} has no position in a topic: nothing to reset",
            hint=f"it keeps none, or has not come to its first batch yet; see {home.location}",
        )
    places = {
        TopicPartition(topic, PartitionIndex(number))
        for topic in names
        for number in client.layout(topic).leaders
    }
    rows: list[dict[str, Any]] = []
    starts: dict[str, dict[str, int]] = {}
    for place in sorted({*places, *named}):
        first, end = client.list_offset(*place, OFFSET_EARLIEST), client.list_offset(*place)
        now, start = before.get(place), OFFSET_EARLIEST
        if isinstance(target, dict):
            start = target.get(place, start if now is None else now)
        elif target != OFFSET_EARLIEST:
            found = client.list_offset(*place, target)
            start = end if found < 0 else found
        if place in named and not first <= start <= end:
            raise InvalidArgumentError(
                f"{place.topic}:{place.partition} has no offset {start}",
                hint=f"it holds {first} to {end - 1}; {end} is what comes next",
            )
        new = first if start == OFFSET_EARLIEST else start
        row = {"topic": place.topic, "partition": place.partition, "now": now, "new": new}
        rows.append({**row, "change": None if now is None else new - now})
        starts.setdefault(place.topic, {})[str(place.partition)] = start
    return rows, starts
