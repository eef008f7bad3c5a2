"""The rules of compaction: which records of a log are removed. Pure, without files.

First the log is surveyed, in order: the headers of the part that was compacted before
(`note_header`), then the batches of the dirty part (`note_batch`), until the key map is full. What
was surveyed is then filtered, in order (`filter`):

- A record stays if it has a key and no later record has the same one.
- A tombstone stays until `delete.retention.ms` have passed since it was first compacted, so that
  every consumer can see it. The log remembers which offsets were compacted when (`Horizon`).
- Records of aborted transactions are removed. A transaction's marker stays as long as a batch of
  the transaction does, and then as long as a tombstone.
- The last batches of a producer stay, if only as headers: the table of producers that is built
  from the log's headers must be the same before and after.
- Malformed batches stay as they are, and do not stop the compaction.
"""

from collections import deque
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from moldau.log.compaction.job import AbortedRange
from moldau.log.compaction.key_map import KeyMap, bytes_for
from moldau.model.ids import Offset, ProducerEpoch, ProducerId
from moldau.records.batch import BatchFormatError, BatchHeader
from moldau.records.compact import emptied_batch, is_filler, keep_records, scan_records
from moldau.records.record import open_body

PRODUCER_BATCHES_KEPT: Final = 5
"""As many as the table of producers contains."""
Batch = bytes | memoryview


class FilterOutcome(Enum):
    """The result for a batch that is not rewritten."""

    KEPT = "kept"
    DROPPED = "dropped"


class _Producer:
    """The last batches of one producer in the surveyed part of the log."""

    __slots__ = ("batches", "epoch", "marker")

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch
        self.batches: deque[Offset] = deque(maxlen=PRODUCER_BATCHES_KEPT)
        self.marker: Offset | None = None


class Compactor:
    """Surveys and filters the batches of one log, for one compaction."""

    def __init__(
        self,
        *,
        keys: KeyMap,
        start_offset: Offset,
        horizon: Offset,
        producers: Collection[ProducerId] | None,
        aborted: Iterable[AbortedRange],
    ) -> None:
        self._keys = keys
        self._start_offset = start_offset
        self._horizon = horizon
        self._remembered = None if producers is None else frozenset(producers)
        self._aborted: dict[ProducerId, list[AbortedRange]] = {}
        for span in aborted:
            self._aborted.setdefault(span.producer_id, []).append(span)
        self._producers: dict[ProducerId, _Producer] = {}
        self._pinned: set[Offset] | None = None
        self._unreadable: set[Offset] = set()
        self._in_transaction: set[ProducerId] = set()
        """Producers with a kept batch since their last marker."""
        self.end_offset = Offset(0)
        """Everything below was surveyed."""
        self.delayed = 0
        self.records_read = 0
        self.records_dropped = 0

    # ---- survey

    def note_header(self, header: BatchHeader) -> None:
        """A batch of the part that was compacted before."""
        self.end_offset = header.next_offset
        producer_id = header.producer_id
        if producer_id < 0 or (
            self._remembered is not None and producer_id not in self._remembered
        ):
            return
        producer = self._producers.get(producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._producers[producer_id] = _Producer(header.producer_epoch)
        if header.is_control:
            producer.marker = header.base_offset
        else:
            producer.batches.append(header.base_offset)

    def note_batch(self, header: BatchHeader, batch: Batch) -> bool:
        """A dirty batch. False if the key map is full: the survey ends before it."""
        if self._has_keys(header):
            if header.record_count > self._keys.room and self._keys.count:
                return False
            self._map_keys(header, batch)
        self.note_header(header)
        return True

    def _has_keys(self, header: BatchHeader) -> bool:
        return (
            header.record_count > 0
            and not header.is_control
            and header.next_offset > self._start_offset
            and not self._is_aborted(header)
        )

    def _map_keys(self, header: BatchHeader, batch: Batch) -> None:
        try:
            spans = scan_records(open_body(batch, header), header)
        except BatchFormatError:
            self._unreadable.add(header.base_offset)
            return
        if len(spans.keys) > self._keys.room:
            # Too large for the map by itself. The number of records in a batch is bounded.
            self._keys = KeyMap(bytes_for(len(spans.keys)))
        self._keys.add(header.base_offset, spans.deltas, spans.keys)

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        return any(
            span.first <= header.base_offset <= span.last
            for span in self._aborted.get(header.producer_id, ())
        )

    # ---- filter

    def filter(self, header: BatchHeader, batch: Batch) -> FilterOutcome | bytes:
        """What becomes of the batch; bytes are its new content."""
        self.records_read += header.record_count
        if header.base_offset >= self.end_offset:
            return FilterOutcome.KEPT
        if is_filler(header):
            return FilterOutcome.DROPPED
        if header.is_control:
            return self._filter_marker(header)
        if not self._has_keys(header):
            outcome = self._emptied(header)
        elif header.base_offset in self._unreadable:
            outcome = FilterOutcome.KEPT
        else:
            outcome = self._filter_records(header, batch)
        if header.is_transactional and outcome is not FilterOutcome.DROPPED:
            self._in_transaction.add(header.producer_id)
        return outcome

    def _filter_marker(self, header: BatchHeader) -> FilterOutcome | bytes:
        is_needed = header.producer_id in self._in_transaction
        self._in_transaction.discard(header.producer_id)
        if header.record_count and (is_needed or header.base_offset >= self._horizon):
            self.delayed += not is_needed
            return FilterOutcome.KEPT
        return self._emptied(header)

    def _emptied(self, header: BatchHeader) -> FilterOutcome | bytes:
        """No record stays; the header does if the table of producers needs it."""
        self.records_dropped += header.record_count
        if header.base_offset not in self._pins():
            return FilterOutcome.DROPPED
        return emptied_batch(header) if header.record_count else FilterOutcome.KEPT

    def _pins(self) -> set[Offset]:
        """Batches that the table of producers needs; valid after the survey."""
        if self._pinned is None:
            self._pinned = set()
            for producer in self._producers.values():
                self._pinned.update(producer.batches)
                if not producer.batches and producer.marker is not None:
                    # Only the marker has its epoch.
                    self._pinned.add(producer.marker)
        return self._pinned

    def _filter_records(self, header: BatchHeader, batch: Batch) -> FilterOutcome | bytes:
        try:
            body = open_body(batch, header)
            spans = scan_records(body, header)
        except BatchFormatError:
            return FilterOutcome.KEPT
        base = header.base_offset
        newest = self._keys.newest(spans.keys)
        kept = [
            place
            for place, (delta, offset, key) in enumerate(
                zip(spans.deltas, newest, spans.keys, strict=True)
            )
            if offset <= base + delta and key is not None
        ]
        if spans.tombstones and kept:
            kept = self._without_tombstones(base, spans.deltas, spans.tombstones, kept)
        if len(kept) == header.record_count:
            return FilterOutcome.KEPT
        if not kept:
            return self._emptied(header)
        self.records_dropped += header.record_count - len(kept)
        return keep_records(header, body, spans, kept)

    def _without_tombstones(
        self, base: Offset, deltas: list[int], tombstones: list[int], kept: list[int]
    ) -> list[int]:
        """`kept` without the tombstones that have expired."""
        candidates = set(tombstones)
        expired = {place for place in tombstones if base + deltas[place] < self._horizon}
        self.delayed += sum(1 for place in kept if place in candidates and place not in expired)
        return [place for place in kept if place not in expired]
