"""What Spark pipelines report about themselves, read from their topic on the broker that leads it.

A pipeline publishes its status once a second as JSON (docs/decisions/0027); the last value of a
key counts. The topic is written by clients: whatever is not such a status is ignored, and what is
read and kept is bounded.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from moldau.api.local_replicas import LocalReplica, LocalReplicas
from moldau.model.errors import MoldauError
from moldau.model.ids import Epoch
from moldau.model.malformed import MALFORMED
from moldau.records.batch import BatchFormatError, read_header
from moldau.records.record import read_records

TOPIC: Final = "__moldau_pipelines"
PIPELINES_MAX: Final = 200
_READ_BYTES_MAX: Final = 512 * 1024
"""In one turn of the event loop; at least one batch."""
_BATCH_RECORDS_MAX: Final = 1_000
"""Pipelines send single records; more than so many would hold up the event loop."""
_STATUS_BYTES_MAX: Final = 64 * 1024
_NAME_CHARACTERS_MAX: Final = 200


class PipelineProgress(msgspec.Struct, frozen=True, kw_only=True):
    batch: int | None = None
    rows: int = 0
    lag: int | None = None
    dead_letters: int = 0


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a status that metrics show. Kind and state become labels: only known ones."""

    kind: Literal["archive", "compact", "replay", "aggregate", "audit"]
    state: Literal["starting", "running", "finished", "stopped", "failed"]
    progress: PipelineProgress = PipelineProgress()
    updated_at: int = 0
    """In milliseconds since 1970, by the clock of the pipeline's machine."""


_decode: Final = msgspec.json.Decoder(PipelineReport).decode


class PipelineReports:
    """The last report of each pipeline; `decode` may make more of it."""

    def __init__(self, decode: Callable[[bytes], PipelineReport] = _decode) -> None:
        self._decode = decode
        self._reports: dict[str, PipelineReport] = {}
        self._read_from: tuple[bytes, Epoch] | None = None
        """Topic and leader epoch."""
        self._position = 0
        self.dropped_count = 0
        """Records that are no report, since the start."""

    def read_some(self, replicas: LocalReplicas) -> bool:
        """Follow the topic. Returns whether there is more to read."""
        replica = replicas.get(TOPIC, 0)
        if replica is None or not replica.is_leader:
            # Its leader reports them.
            self._read_from = None
            self._reports.clear()
            return False
        if self._read_from != (replica.topic_id, replica.epoch):
            self._read_from = (replica.topic_id, replica.epoch)
            self._reports.clear()
            self._position = replica.start_offset
        return self._read(replica)

    def _read(self, replica: LocalReplica) -> bool:
        end, size = replica.high_watermark, 0
        start = max(self._position, replica.start_offset)
        if start >= end:
            return False
        try:
            for batch, next_offset in replica.committed_batches(start):
                self._take(batch)
                self._position = next_offset
                size += len(batch)
                if size >= _READ_BYTES_MAX:
                    return self._position < end
        except MoldauError:
            # Retention or a truncation removed it meanwhile, or it is corrupt: those who serve the
            # partition report that.
            self._position = end
        return False

    def _take(self, batch: bytes) -> None:
        try:
            count = read_header(batch).record_count
            if count > _BATCH_RECORDS_MAX:
                self.dropped_count += count
                return
            records = read_records(batch, bytes_max=_READ_BYTES_MAX)
        except BatchFormatError:
            self.dropped_count += 1
            return
        for record in records:
            name = (record.key or b"").decode("utf-8", "replace")[:_NAME_CHARACTERS_MAX]
            report = self._report(record.value)
            # Again at the end, so that the oldest ones are those that go.
            self._reports.pop(name, None)
            if report is not None and name:
                self._reports[name] = report
            elif record.value is not None:
                self.dropped_count += 1
        while len(self._reports) > PIPELINES_MAX:
            del self._reports[next(iter(self._reports))]

    @property
    def reports(self) -> Mapping[str, PipelineReport]:
        return self._reports

    def _report(self, value: bytes | None) -> PipelineReport | None:
        if value is None or len(value) > _STATUS_BYTES_MAX:
            return None
        try:
            return self._decode(value)
        except MALFORMED:
            return None
