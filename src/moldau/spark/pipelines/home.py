"""Owns the folder of a pipeline: what it must remember, and that it runs once at a time here.

spec.json     its settings, without secrets        checkpoint/   how far it is: Spark's
start.json    where it begins, after a reset       old/          checkpoints before a reset
lock          held by the process that runs it
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

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


class Home:
    """The folder of one pipeline, whose name is the folder's."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.name = check_name(self.path.name)
        self.checkpoint = self.path / "checkpoint"
        self._spec_file = self.path / "spec.json"
        self._start_file = self.path / "start.json"

    @property
    def exists(self) -> bool:
        return self._spec_file.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the process that uses it; the lock goes with the process, however that ends.

        Raises BusyError if another one does.
        """
        # What is in it may be about records: for nobody else's eyes.
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path / "lock", "ab") as file:
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
        if self.path.is_dir():
            with self.held():
                pass

    # -- what it remembers

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        _replace(self._spec_file, msgspec.json.format(msgspec.json.encode(spec), indent=2))

    def read_spec(self) -> dict[str, Any]:
        """Without secrets; empty if it never ran here, or cannot be read."""
        return _read_object(self._spec_file)

    # -- where it begins

    def read_start(self) -> Offsets | None:
        """Where it was told to begin by the last reset, if there was one."""
        found: Any = _read_object(self._start_file)
        return found or None

    def reset(self, offsets: Offsets) -> Path | None:
        """Begin at `offsets`. The checkpoint is moved aside; returns where it is now."""
        with self.held():
            # First where to begin: a reset that is cut short is then repeated, not half of one.
            _replace(self._start_file, msgspec.json.encode(offsets))
            if not self.checkpoint.exists():
                return None
            # To the microsecond: each has a name of its own.
            old = self.path / "old" / f"checkpoint-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
            old.parent.mkdir(exist_ok=True)
            self.checkpoint.rename(old)
            return old


def _replace(path: Path, data: bytes) -> None:
    """In one step: nobody reads half a file."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data + b"\n")
    os.replace(new, path)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}
