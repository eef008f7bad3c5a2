"""Owns what is said of a pipeline, and where: on a compacted internal topic of the brokers.

One partition, the key is the pipeline's name, the value a `Record` as JSON. Whoever wants to know
reads the topic to its end; the last value of a key is true. See docs/decisions/0027.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.kafka.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.kafka.retrying import patiently
from moldau.client.processes import ProcessKey, is_running
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record as LogRecord
from moldau.records.record import build_batch, read_records
from moldau.spark.pipelines.spec import Outcome, Progress, State
from moldau.spark.source.bodies import whole_batches

TOPIC: Final = "__moldau_pipelines"
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # Small ones: what was said every second is soon compacted away.
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_FETCH_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")

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
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    def shown_state(self, now: int | None = None) -> str:
        """As State, or LOST."""
        if self.state not in ALIVE:
            return str(self.state)
        if self.is_here:
            # Nobody needs to guess about a process of this machine.
            return str(self.state) if is_running(ProcessKey(self.pid, self.process)) else LOST
        silent_ms = (now_ms() if now is None else now) - self.updated_at
        return LOST if silent_ms > SILENT_SECONDS_MAX * 1000 else str(self.state)

    def is_alive(self, now: int | None = None) -> bool:
        return self.shown_state(now) in ALIVE

    def described(self) -> dict[str, Any]:
        """As plain values for those who read JSON: the state that is shown, and for how long."""
        now = now_ms()
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **plain,
            "state": self.shown_state(now),
            "uptime_seconds": (now - self.started_at) / 1000 if self.is_alive(now) else None,
        }


def now_ms() -> int:
    return int(time.time() * 1000)


def decode_record(data: bytes) -> Record | None:
    """None for what is no record that we know: of a version to come, or of somebody else."""
    try:
        return msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Board:
    """A connection to it. Not for use by two threads."""

    def __init__(self, bootstrap: str, *, seconds_max: float = 5.0) -> None:
        self._seconds_max = seconds_max
        self._client = KafkaClient(
            bootstrap, client_id="moldau-pipelines", timeout=max(seconds_max, 1.0)
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def publish(self, record: Record) -> None:
        """Raises ClientError."""
        self._write(record.name, msgspec.json.encode(record))

    def forget(self, name: str) -> None:
        """Nothing is said of it any more."""
        self._write(name, None)

    def _write(self, name: str, value: bytes | None) -> None:
        entry = LogRecord(Offset(0), TimestampMs(now_ms()), name.encode(), value, [])
        batch = build_batch([entry])

        def attempt() -> None:
            try:
                # Once too often does no harm: the last one of a key is what counts.
                self._client.produce(TOPIC, 0, batch)
            except NotFoundError:
                self._create()

        self._patiently(attempt, f"say how pipeline {name} is")

    def read(self) -> dict[str, Record]:
        """What was last said, by name; empty before the first word. Raises ClientError."""
        try:
            return self._patiently(self._read, "read how pipelines are")
        except NotFoundError:
            return {}

    def _read(self) -> dict[str, Record]:
        end = self._client.list_offset(TOPIC, 0)
        position = self._client.list_offset(TOPIC, 0, OFFSET_EARLIEST)
        found: dict[str, Record] = {}
        while position < end:
            fetched = self._client.fetch(
                TOPIC, 0, position, bytes_max=_FETCH_BYTES, wait_ms_max=100
            )
            before = position
            data = memoryview(fetched)
            for start, header in whole_batches(data):
                if not header.is_control:
                    for entry in read_records(data[start : start + header.size]):
                        _take(found, entry)
                position = max(position, header.next_offset)
            if position == before:
                raise RejectedError(f"nothing came of {TOPIC}", ErrorCode.LEADER_NOT_AVAILABLE)
        return found

    def _create(self) -> None:
        """Always raises: brokers hear of a new topic one after the other."""
        try:
            self._client.create_topic(TOPIC, 1, configs=_CONFIGS)
        except RejectedError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._client.forget(TOPIC)
        raise RejectedError(f"{TOPIC} was just created", ErrorCode.LEADER_NOT_AVAILABLE)

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        # An election is waited for; whether there is a broker at all is known at once.
        self._client.any_broker()
        return patiently(
            attempt,
            forget=partial(self._client.forget, TOPIC),
            seconds_max=self._seconds_max,
            doing=doing,
        )


def unknown(name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no pipeline {name}",
        hint="list them: moldau pipeline list · other brokers: -b HOST:PORT",
    )


def _take(found: dict[str, Record], entry: LogRecord) -> None:
    if entry.key is None:
        return
    name = bytes(entry.key).decode("utf-8", "replace")
    record = None if entry.value is None else decode_record(bytes(entry.value))
    if record is None:
        found.pop(name, None)
    else:
        found[name] = record
