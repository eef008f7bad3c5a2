"""The status of pipelines, and the compacted topic that holds it.

The topic has one partition; the key is the pipeline's name, the value a `PipelineStatus` as JSON.
Clients read the topic to its end; the last value of a key counts. See docs/decisions/0027.
"""

import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import msgspec

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.processes import ProcessKey, is_running
from moldau.client.retry import retry
from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record as LogRecord
from moldau.records.record import build_batch
from moldau.spark.compacted_topic import batches_to_end, create_compacted
from moldau.spark.pipelines.spec import Outcome, PipelineState, Progress
from moldau.spark.source.positions import Positions

TOPIC: Final = "__moldau_pipelines"
_SEGMENT_BYTES: Final = 1024 * 1024
"""Small, so that old heartbeats are soon compacted."""

LOST: Final = "lost"
"""Shown for a pipeline that should run but sends no heartbeats, or whose process ended."""
HEARTBEAT_SECONDS_MAX: Final = 30.0
"""Running pipelines publish a status every second; after this long without one they are lost."""
OBSERVED: Final = "moldau"
ALIVE: Final = (PipelineState.STARTING, PipelineState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The state of a pipeline at one time, without secrets."""

    name: str
    kind: str
    state: PipelineState
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    outcome: Outcome | None = None
    error: str = ""
    hint: str = ""
    host: str = ""
    pid: int = 0
    process: str = ""
    """The start time of the process; see `moldau.client.processes`."""
    home: str = ""
    started_at: int = 0
    """In milliseconds since 1970, as all times here."""
    updated_at: int = 0

    def changed(self, **changes: Any) -> "PipelineStatus":
        return replace(self, **changes, updated_at=now_ms())

    def shown_state(self, now: int | None = None) -> str:
        """The PipelineState, or LOST."""
        if self.state not in ALIVE:
            return self.state
        if self.host == socket.gethostname():
            # On this machine the process itself can be checked.
            is_lost = not is_running(ProcessKey(self.pid, self.process))
        else:
            is_lost = (now or now_ms()) - self.updated_at > HEARTBEAT_SECONDS_MAX * 1000
        return LOST if is_lost else self.state

    def is_alive(self) -> bool:
        return self.shown_state() in ALIVE

    def described(self) -> dict[str, Any]:
        """For JSON output: with the shown state, and the uptime."""
        uptime = (now_ms() - self.started_at) / 1000 if self.is_alive() else None
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {**plain, "state": str(self.shown_state()), "uptime_seconds": uptime}


def now_ms() -> int:
    return int(time.time() * 1000)


class StatusTopic:
    """A client of the status topic. Not thread-safe."""

    def __init__(
        self, bootstrap: str, *, seconds_max: float = 5.0, security: Security = PLAIN_TEXT
    ) -> None:
        self._seconds_max = max(seconds_max, 1.0)
        self._client = KafkaClient(
            bootstrap,
            client_id="moldau-pipelines",
            timeout=self._seconds_max,
            security=security,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def publish(self, record: PipelineStatus) -> None:
        """Raises ClientError."""
        self._write(record.name, msgspec.json.encode(record))

    def forget(self, name: str) -> None:
        self._write(name, None)

    def _write(self, name: str, value: bytes | None) -> None:
        entry = LogRecord(Offset(0), TimestampMs(now_ms()), name.encode(), value, [])
        batch = build_batch([entry])

        def attempt() -> None:
            try:
                # Retries are safe: the last value of a key counts.
                self._client.produce(TOPIC, 0, batch)
            except NotFoundError:
                create_compacted(self._client, TOPIC, {"segment.bytes": str(_SEGMENT_BYTES)})

        # Elections are retried, but an unreachable cluster fails at once.
        self._client.any_broker()
        retry(
            attempt,
            forget=partial(self._client.forget, TOPIC),
            seconds_max=self._seconds_max,
            doing=f"publish the status of pipeline {name}",
        )

    def read(self) -> dict[str, PipelineStatus]:
        """The last status by name; empty if there is no topic yet. Raises ClientError."""
        self._client.any_broker()
        try:
            # Retried, since a caller without a status might start a running pipeline again.
            return retry(
                self._read,
                forget=partial(self._client.forget, TOPIC),
                seconds_max=self._seconds_max,
                doing="read the status of pipelines",
            )
        except NotFoundError:
            return {}

    def _read(self) -> dict[str, PipelineStatus]:
        found: dict[str, PipelineStatus] = {}
        first = self._client.list_offset(TOPIC, 0, OFFSET_EARLIEST)
        for _, entries in batches_to_end(self._client, TOPIC, 0, first):
            for entry in entries:
                _take(found, entry)
        return found


def _take(found: dict[str, PipelineStatus], entry: LogRecord) -> None:
    """Ignores values that are no status of this version."""
    name = (entry.key or b"").decode("utf-8", "replace")
    try:
        found[name] = msgspec.json.decode(entry.value or b"", type=PipelineStatus)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found.pop(name, None)


class QueryProgress:
    """Adds up the micro-batches of one query, each once, from Spark's progress reports.

    Rows are counted by offsets if possible, since Spark counts a batch twice that `foreachBatch`
    uses twice. A query whose rows are not records, but files that its tasks wrote, observes
    (`DataFrame.observe`) their sum as `rows` of OBSERVED. The lag is the distance from the end of
    the last batch to the latest offsets at that time.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._batch_rows = 0

    def add(self, batches: Iterable[Mapping[str, Any]]) -> bool:
        """Adds Spark's JSON progress of batches, oldest first; returns whether one was new."""
        is_new = False
        for each in batches:
            known, number, rows = self.progress.batch, int(each.get("batchId", -1)), _rows(each)
            if known is not None and number < known:
                continue
            before = self._batch_rows if number == known else 0
            if number != known or rows > before:
                # Spark also reports a batch before it has found rows for it.
                seconds = float(each.get("batchDuration") or 0) / 1000
                self.progress = Progress(
                    batch=number,
                    rows=self.progress.rows + rows - before,
                    rows_per_second=rows / seconds if seconds > 0 else None,
                    batch_seconds=seconds,
                )
                self._batch_rows = rows
                is_new = True
            elif rows < before:
                # A report that there were no new rows since.
                self.progress = replace(self.progress, rows_per_second=0.0)
            self.progress = replace(self.progress, lag=_span(each, "endOffset", "latestOffset"))
        return is_new


def _rows(batch: Mapping[str, Any]) -> int:
    observed = (batch.get("observedMetrics") or {}).get(OBSERVED)
    if observed is not None and "rows" in observed:
        return int(observed["rows"] or 0)
    counted = int(batch.get("numInputRows") or 0)
    span = _span(batch, "startOffset", "endOffset")
    # Not every offset is a row: transaction markers have offsets, too.
    return counted if span is None else min(counted, span)


def _span(batch: Mapping[str, Any], start: str, end: str) -> int | None:
    """The number of offsets from start to end, over all sources; None if one is not a topic."""
    sources, count = batch.get("sources"), 0
    if not sources:
        return None
    try:
        for source in sources:
            before = Positions.from_json(source.get(start)).offsets
            for tp, offset in Positions.from_json(source.get(end)).offsets.items():
                # A new partition starts at offset 0.
                count += max(0, offset - before.get(tp, 0))
    except InvalidArgumentError:
        return None
    return count
