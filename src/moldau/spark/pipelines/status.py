"""Responsible for what is said of a pipeline: how far it is, and where others read that.

It is said on a compacted topic of the brokers with one partition; the key is the pipeline's name,
the value a `Record` as JSON. Whoever wants to know reads the topic to its end; the last value of a
key is true. See docs/decisions/0027.
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
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record as LogRecord
from moldau.records.record import build_batch
from moldau.spark.compacted_topic import batches_to_end, create_compacted
from moldau.spark.pipelines.spec import Outcome, PipelineState, Progress
from moldau.spark.source.positions import Positions

TOPIC: Final = "__moldau_pipelines"
_SEGMENT_BYTES: Final = 1024 * 1024
"""Small ones: what was said every second is soon compacted away."""

LOST: Final = "lost"
"""Said of a pipeline that should run and was not heard of for a while, or whose process is gone."""
SILENT_SECONDS_MAX: Final = 30.0
"""Running pipelines say something every few seconds; after so long they are taken for lost."""
OBSERVED: Final = "moldau"
ALIVE: Final = (PipelineState.STARTING, PipelineState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The state of a pipeline at one moment, without secrets."""

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
    """When the process started, as its machine says it; see `moldau.client.processes`."""
    home: str = ""
    started_at: int = 0
    """Milliseconds since 1970, as are all times here."""
    updated_at: int = 0

    def changed(self, **changes: Any) -> "Record":
        return replace(self, **changes, updated_at=now_ms())

    def shown_state(self, now: int | None = None) -> str:
        """As State, or LOST."""
        if self.state not in ALIVE:
            return self.state
        if self.host == socket.gethostname():
            # Nobody needs to guess about a process of this machine.
            is_lost = not is_running(ProcessKey(self.pid, self.process))
        else:
            is_lost = (now or now_ms()) - self.updated_at > SILENT_SECONDS_MAX * 1000
        return LOST if is_lost else self.state

    def is_alive(self) -> bool:
        return self.shown_state() in ALIVE

    def described(self) -> dict[str, Any]:
        """As plain values for those who read JSON: the state that is shown, and for how long."""
        uptime = (now_ms() - self.started_at) / 1000 if self.is_alive() else None
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {**plain, "state": str(self.shown_state()), "uptime_seconds": uptime}


def now_ms() -> int:
    return int(time.time() * 1000)


class StatusTopic:
    """A connection to it. Not for use by two threads."""

    def __init__(self, bootstrap: str, *, seconds_max: float = 5.0) -> None:
        self._seconds_max = max(seconds_max, 1.0)
        self._client = KafkaClient(
            bootstrap, client_id="moldau-pipelines", timeout=self._seconds_max
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

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
                create_compacted(self._client, TOPIC, {"segment.bytes": str(_SEGMENT_BYTES)})

        # An election is waited for; whether there is a broker at all is known at once.
        self._client.any_broker()
        retry(
            attempt,
            forget=partial(self._client.forget, TOPIC),
            seconds_max=self._seconds_max,
            doing=f"say how pipeline {name} is",
        )

    def read(self) -> dict[str, Record]:
        """What was last said, by name; empty before the first word. Raises ClientError."""
        self._client.any_broker()
        try:
            # An election is waited for: who is told nothing may run what runs already.
            return retry(
                self._read,
                forget=partial(self._client.forget, TOPIC),
                seconds_max=self._seconds_max,
                doing="read how pipelines are",
            )
        except NotFoundError:
            return {}

    def _read(self) -> dict[str, Record]:
        found: dict[str, Record] = {}
        first = self._client.list_offset(TOPIC, 0, OFFSET_EARLIEST)
        for _, entries in batches_to_end(self._client, TOPIC, 0, first):
            for entry in entries:
                _take(found, entry)
        return found


def _take(found: dict[str, Record], entry: LogRecord) -> None:
    """What is no record that we know, of a later version or of somebody else, says nothing."""
    name = (entry.key or b"").decode("utf-8", "replace")
    try:
        found[name] = msgspec.json.decode(entry.value or b"", type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found.pop(name, None)


class QueryProgress:
    """Adds up the batches of one query, each once, from what Spark says about them.

    Rows are counted by offsets where they can be: a batch that is used twice (as `foreachBatch`
    may) is counted twice by Spark. A query whose rows are something else than records, such as
    files that its tasks wrote, observes (`DataFrame.observe`) their sum as `rows` of OBSERVED. The
    lag is what lies between the end of the last batch and the latest offsets by then.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._batch_rows = 0

    def take(self, told: Iterable[Mapping[str, Any]]) -> bool:
        """The progress of batches, oldest first, as in Spark's JSON; True if one was new."""
        is_new = False
        for each in told:
            known, number, rows = self.progress.batch, int(each.get("batchId", -1)), _rows(each)
            if known is not None and number < known:
                continue
            before = self._batch_rows if number == known else 0
            if number != known or rows > before:
                # Spark also tells of a batch that it has not found anything for yet.
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
                # The word that nothing has come since.
                self.progress = replace(self.progress, rows_per_second=0.0)
            self.progress = replace(self.progress, lag=_span(each, "endOffset", "latestOffset"))
        return is_new


def _rows(told: Mapping[str, Any]) -> int:
    observed = (told.get("observedMetrics") or {}).get(OBSERVED)
    if observed is not None and "rows" in observed:
        return int(observed["rows"] or 0)
    counted = int(told.get("numInputRows") or 0)
    span = _span(told, "startOffset", "endOffset")
    # Offsets also count what is no row, such as marks of transactions.
    return counted if span is None else min(counted, span)


def _span(told: Mapping[str, Any], start: str, end: str) -> int | None:
    """How many offsets lie between, in all sources; None if one has no positions in topics."""
    sources, count = told.get("sources"), 0
    if not sources:
        return None
    try:
        for source in sources:
            before = Positions.from_json(source.get(start)).offsets
            for place, offset in Positions.from_json(source.get(end)).offsets.items():
                # A partition that was not known before begins at its first offset at most.
                count += max(0, offset - before.get(place, 0))
    except InvalidArgumentError:
        return None
    return count
