"""Responsible for the place of a pipeline: what it must remember, and that it runs once at a time.

A folder, or a prefix of an object store.

spec.json     its settings, without secrets        checkpoint/   how far it is: Spark's
start.json    where it begins, after a reset       old/          checkpoints before a reset
lock          held by the process that runs it
"""

import fcntl
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.pipelines.checkpoints import checkpoint_of

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

_SPEC: Final = "spec.json"
_START: Final = "start.json"
_USED: Final = "start.used.json"
_CHECKPOINT: Final = "checkpoint"

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition, as the source's option startingOffsets has them."""


class BusyError(ClientError):
    """The pipeline runs already."""


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
        return self._folder.read(_SPEC) is not None

    @property
    def checkpoint(self) -> Folder:
        return checkpoint_of(self.location)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the process that uses it; the lock goes with the process, however that ends.

        Raises BusyError if another one does. An object store has no locks: there, what pipelines
        tell the brokers is all that keeps two of one name apart.
        """
        if not self._folder.is_local:
            yield
            return
        # What is in it may be about records: for nobody else's eyes.
        Path(self.location).mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(Path(self.location) / "lock", "ab") as file:
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
        """Raises BusyError while it runs here. Makes no folder."""
        if Path(self.location).is_dir():
            with self.held():
                pass

    def delete(self) -> None:
        """All of it."""
        with self.held():
            self._folder.delete_all()

    # -- what it remembers

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        self._folder.write(_SPEC, msgspec.json.format(msgspec.json.encode(spec), indent=2))

    def read_spec(self) -> dict[str, Any]:
        """Without secrets; empty if it never ran here, or cannot be read."""
        try:
            return self._read_object(_SPEC)
        except (OSError, ClientError):
            return {}

    # -- where it begins

    def read_start(self) -> Offsets | None:
        """Where it was told to begin by the last reset, if there was one. Raises ClientError."""
        found: Any = self._read_object(_START)
        return found or None

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
            self._folder.write(_START, msgspec.json.encode(offsets))
            if next(self._folder.list(_CHECKPOINT), None) is None:
                return None
            # To the microsecond: each has a name of its own.
            old = f"old/{_CHECKPOINT}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
            self._folder.move_all(_CHECKPOINT, old)
            return f"{self.location}/{old}"

    def _read_object(self, path: str) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(self._folder.read(path) or b"{}")
        except msgspec.DecodeError as error:
            raise ClientError(f"{self.location}/{path} cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}
