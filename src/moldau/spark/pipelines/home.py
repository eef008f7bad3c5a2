"""Owns the folder of a pipeline: what it must remember, and that it runs once at a time here.

spec.json     its settings, without secrets        checkpoint/   how far it is: Spark's
state.json    what it last said about itself       start.json    where it begins, after a reset
pid.json      the process that runs it             pipeline.log  what it and Spark had to say
lock          held by that process                 old/          checkpoints before a reset
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.processes import ProcessKey, is_running, process_key
from moldau.spark.pipelines.record import Record, decode_record, encode_record

_KILLED_SECONDS_MAX: Final = 5.0
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
        self.log_file = self.path / "pipeline.log"
        self.checkpoint = self.path / "checkpoint"
        self._spec_file = self.path / "spec.json"
        self._state_file = self.path / "state.json"
        self._pid_file = self.path / "pid.json"
        self._start_file = self.path / "start.json"
        self._lock_file = self.path / "lock"

    @property
    def exists(self) -> bool:
        return self._spec_file.exists() or self._state_file.exists()

    def create(self) -> None:
        # Logs may hold what records hold: for nobody else's eyes.
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    # -- one at a time

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the process that runs it. Raises BusyError if another one is."""
        self.create()
        with open(self._lock_file, "ab") as file:
            self._lock(file.fileno())
            # Written only by who holds the lock; the start of the process tells it from a later
            # one that got the same number.
            key = process_key(os.getpid())
            if key is not None:
                _replace(self._pid_file, msgspec.json.encode(key._asdict()))
            try:
                yield
            finally:
                self._pid_file.unlink(missing_ok=True)

    def _lock(self, descriptor: int) -> None:
        """Waits for one that was just killed: its threads end one by one, the last lets go."""
        deadline = time.monotonic() + _KILLED_SECONDS_MAX
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if self.process() is not None or time.monotonic() > deadline:
                    raise self.busy() from error
            time.sleep(0.05)

    def process(self) -> ProcessKey | None:
        """The process that runs it here; None if none does."""
        try:
            found = msgspec.json.decode(self._pid_file.read_bytes())
            key = ProcessKey(int(found["pid"]), str(found["started"]))
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
            return None
        return key if is_running(key) else None

    def busy(self) -> BusyError:
        key = self.process()
        who = f", as process {key.pid}" if key else ""
        return BusyError(
            f"pipeline {self.name} is running already{who}",
            hint=f"look at it: moldau pipeline status {self.name} · "
            f"stop it: moldau pipeline stop {self.name} · another one: --name NAME",
        )

    def check_idle(self) -> None:
        """Raises BusyError while it runs here."""
        if self.process() is not None:
            raise self.busy()

    # -- what it remembers

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        _replace(self._spec_file, msgspec.json.format(msgspec.json.encode(spec), indent=2))

    def read_spec(self) -> dict[str, Any]:
        """Without secrets; empty if it never ran here, or cannot be read."""
        return _read_object(self._spec_file)

    def write_state(self, record: Record) -> None:
        _replace(self._state_file, encode_record(record))

    def read_state(self) -> Record | None:
        try:
            return decode_record(self._state_file.read_bytes())
        except OSError:
            return None

    # -- where it begins

    def read_start(self) -> Offsets | None:
        """Where it was told to begin by the last reset, if there was one."""
        found: Any = _read_object(self._start_file)
        return found or None

    def reset(self, offsets: Offsets) -> Path | None:
        """Begin at `offsets`. The checkpoint is moved aside; returns where it is now."""
        self.check_idle()
        self.create()
        # First where to begin: a reset that is cut short is then repeated, not half of one.
        _replace(self._start_file, msgspec.json.encode(offsets))
        if not self.checkpoint.exists():
            return None
        old = self.path / "old" / time.strftime("checkpoint-%Y%m%dT%H%M%SZ", time.gmtime())
        old.parent.mkdir(exist_ok=True)
        number = 1
        free = old
        while free.exists():
            number += 1
            free = old.with_name(f"{old.name}-{number}")
        self.checkpoint.rename(free)
        return free


def homes(root: Path) -> list[Home]:
    """The pipelines that ever ran here, by name."""
    if not root.is_dir():
        return []
    found = [Home(path) for path in sorted(root.iterdir()) if _NAME.fullmatch(path.name)]
    return [home for home in found if home.exists]


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
