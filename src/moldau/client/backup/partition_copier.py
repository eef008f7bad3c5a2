"""Copies one partition for a backup: only what the files that are there do not have.

Files are used again only if the log has the last batch of theirs: then it has all before it, too.
"""

from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.client.backup.batch_source import FETCH_BYTES, StoredBatch, stored_batches
from moldau.client.backup.manifests import (
    BackupDamagedError,
    PartitionCopy,
    Segment,
    found_segments,
    read_segment,
)
from moldau.client.backup.stores import BackupStore
from moldau.client.backup.work import Pace
from moldau.client.errors import ClientError
from moldau.client.wire.client import KafkaClient
from moldau.records.batch import BatchHeader, read_header
from moldau.records.compact import is_filler
from moldau.records.runs import read_run

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Of one file: each worker has so much in memory."""


class Pin(NamedTuple):
    """What is to be copied of a partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    high_watermark: int
    before: PartitionCopy | None
    """Its copy in the last backup."""
    compacted: bool = False
    """Then it is copied afresh: files from before a compaction do not fit to what came after. A
    deleted key would come back whose tombstone is gone, and so would an aborted record."""

    @property
    def left(self) -> int:
        """How many offsets are to be copied."""
        is_known = self.before is not None and not self.compacted
        return self.end - max(self.start, self.before.end if self.before and is_known else 0)


class PartitionCopier:
    """Copies what the last backup of a partition, and one that was cut short, do not have."""

    def __init__(self, store: BackupStore, client: KafkaClient, pin: Pin, pace: Pace) -> None:
        self._store = store
        self._client = client
        self._pin = pin
        self._pace = pace
        self._segments: list[Segment] = []
        self._open: set[int] = set()
        """Producers with a transaction whose marker was not met yet."""
        self._last_crc = self._last_epoch = -1
        self.has_lost = False
        """The log does not have what the last backup has of it."""
        self._buffer = bytearray()
        self._buffer_start = 0

    def run(self) -> PartitionCopy:
        start = self._take_over()
        self._buffer_start = start
        position = self._copy(start, self._pin.end)
        if self._pin.compacted:
            position = self._catch_up(position)
        if self._buffer:
            self._write(position)
        pin = self._pin
        end = max(pin.end, position)
        return PartitionCopy(
            topic=pin.topic,
            topic_id=pin.topic_id,
            partition=pin.partition,
            start=pin.start,
            end=end,
            markers=tuple(self._markers(end)),
            segments=tuple(self._segments),
            last_crc=self._last_crc,
            last_epoch=self._last_epoch,
        )

    def _copy(self, position: int, end: int) -> int:
        """Returns where the last batch ends; the newest ones are not written yet."""
        for header, batch in self._read(position, end):
            if not self._buffer:
                self._buffer_start = header.base_offset
            self._note(header)
            self._buffer += batch
            position = header.next_offset
            if len(self._buffer) >= SEGMENT_BYTES:
                self._write(position)
        return position

    def _catch_up(self, position: int) -> int:
        """While it was copied, compaction may have removed records for others that came after the
        end: without those, the key would have none. Twice, as the first takes its time, too."""
        place = self._pin.topic, self._pin.partition
        for _ in range(2):
            end = self._client.list_offset(*place, read_committed=True)
            if end > position:
                high_watermark = self._client.list_offset(*place)
                self._pin = self._pin._replace(end=end, high_watermark=high_watermark)
                position = self._copy(position, end)
        return position

    def _has(self, end: int, crc: int, epoch: int) -> bool:
        """Whether the log has this batch before `end`: then it has the same before that, too."""
        if crc < 0 or end > self._pin.high_watermark:
            return False
        header, _ = next(iter(self._read(end - 1, end, bytes_max=1)))
        # An older manifest has no epoch.
        return (header.next_offset, header.crc) == (end, crc) and epoch in (-1, header.leader_epoch)

    def _read(self, start: int, end: int, bytes_max: int = FETCH_BYTES) -> Iterable[StoredBatch]:
        place = self._pin.topic, self._pin.partition
        return stored_batches(self._client, *place, start, end, bytes_max=bytes_max)

    def _take_over(self) -> int:
        """Files that are there already; returns where to continue."""
        pin = self._pin
        if pin.compacted:
            return pin.start
        there = set(found_segments(self._store, pin.topic_id, pin.partition))
        position = self._take_last(there)
        for segment in sorted(there):
            is_next = segment.start == position or (
                not self._segments and segment.start <= position < segment.end
            )
            if is_next and segment.end <= pin.end and self._take_unlisted(segment):
                self._pace.add(0, segment.end - position)
                position = segment.end
        return position

    def _take_last(self, there: Set[Segment]) -> int:
        """Those of the last backup, if the log goes on after it; returns where they end."""
        before, position = self._pin.before, self._pin.start
        if before is None or before.end <= position:
            return position
        if not self._has(before.end, before.last_crc, before.last_epoch):
            # Without a batch at its end it is not known whether it is the same log.
            self.has_lost = before.last_crc >= 0 or before.end > self._pin.high_watermark
            return position
        for segment in before.segments:
            if segment.end > position:
                if segment not in there:
                    # Somebody deleted it: from here on all is copied again.
                    break
                self._segments.append(segment)
                position = segment.end
        self._open.update(_producers(before.markers))
        if position == before.end:
            self._last_crc, self._last_epoch = before.last_crc, before.last_epoch
        return position

    def _take_unlisted(self, segment: Segment) -> bool:
        """One that the last backup does not name: of one that was cut short, or of another past of
        the log. Whether it is of this one."""
        pin = self._pin
        copy = PartitionCopy(
            topic=pin.topic,
            topic_id=pin.topic_id,
            partition=pin.partition,
            start=segment.start,
            end=segment.end,
        )
        try:
            headers = read_run(read_segment(self._store, copy, segment), segment.start)
        except BackupDamagedError:
            self._store.delete(segment.path(pin.topic_id, pin.partition))
            return False
        last = headers[-1]
        if is_filler(last) or not self._has(segment.end, last.crc, last.leader_epoch):
            return False
        for header in headers:
            self._note(header)
        self._segments.append(segment)
        return True

    def _note(self, header: BatchHeader) -> None:
        is_empty = is_filler(header)
        self._last_crc = -1 if is_empty else header.crc
        self._last_epoch = -1 if is_empty else header.leader_epoch
        if not header.is_transactional:
            return
        if header.is_control:
            self._open.discard(header.producer_id)
        elif header.record_count:
            self._open.add(header.producer_id)

    def _write(self, end: int) -> None:
        data = bytes(self._buffer)
        segment = Segment(self._buffer_start, end, len(data), crc32c(data))
        self._store.put(segment.path(self._pin.topic_id, self._pin.partition), data)
        self._segments.append(segment)
        self._buffer.clear()
        self._pace.add(len(data), end - segment.start)

    def _markers(self, end: int) -> Iterable[bytes]:
        """The ends of transactions below `end`: all have ended, but some of the markers come after
        the first record of a transaction that is still open."""
        if not self._open:
            return
        for header, batch in self._read(end, self._pin.high_watermark):
            if header.is_control and header.producer_id in self._open:
                self._open.discard(header.producer_id)
                yield batch
            if not self._open:
                return
        raise ClientError(
            f"{self._pin.topic}-{self._pin.partition}: the end of a transaction is missing",
            hint="repeat the command; look for hanging transactions: moldau transaction list",
        )


def _producers(markers: Iterable[bytes]) -> Iterable[int]:
    return (read_header(marker).producer_id for marker in markers)
