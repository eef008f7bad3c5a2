"""Owns what is said of a pipeline: in its folder, on the broker, and to those who ask."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from moldau.client.processes import ProcessKey, is_running
from moldau.spark.pipelines.spec import Outcome, Progress, State

LOST: Final = "lost"
"""Said of a pipeline that should run and was not heard of for a while, or whose process is gone."""
SILENT_SECONDS_MAX: Final = 30.0
"""Running pipelines say something every few seconds; after so long they are taken for lost."""

ALIVE: Final = (State.STARTING, State.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The state of a pipeline at one moment, without secrets."""

    name: str
    kind: str
    state: State
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    outcome: Outcome | None = None
    error: str = ""
    hint: str = ""
    host: str = ""
    pid: int = 0
    process: str = ""
    """When the process started, as its machine says it; see `moldau.client.processes`."""
    home: str = ""
    started_at: int = 0
    """Milliseconds since 1970, as are all times here."""
    updated_at: int = 0

    def changed(self, **changes: Any) -> "Record":
        return replace(self, **changes, updated_at=now_ms())

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.process)

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    def shown_state(self, now: int | None = None) -> str:
        """As State, or LOST."""
        if self.state not in ALIVE:
            return str(self.state)
        if self.is_here:
            # Nobody needs to guess about a process of this machine.
            return str(self.state) if is_running(self.key) else LOST
        silent_ms = (now_ms() if now is None else now) - self.updated_at
        return LOST if silent_ms > SILENT_SECONDS_MAX * 1000 else str(self.state)

    def is_alive(self, now: int | None = None) -> bool:
        return self.shown_state(now) in ALIVE


def now_ms() -> int:
    return int(time.time() * 1000)


def encode_record(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record | None:
    """None for what is no record that we know: of a version to come, or of somebody else."""
    try:
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
