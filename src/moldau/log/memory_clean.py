"""Owns a cleaning of the in-memory log: by the same rules, batch by batch, without segments."""

from moldau.log.clean import CleanCounts, CleanRequest, CleanResult
from moldau.log.compactor import Compactor, FilterOutcome
from moldau.log.keymap import KeyMap, bytes_for
from moldau.model.ids import Offset
from moldau.records.batch import BatchHeader, read_header
from moldau.records.compact import empty_batch, is_filler


class MemoryClean:
    """One cleaning: `cleaned` takes the place of `batches`."""

    def __init__(
        self,
        request: CleanRequest,
        batches: list[tuple[BatchHeader, bytes]],
        start_offset: Offset,
        horizon: Offset,
        barriers: frozenset[Offset],
    ) -> None:
        self.request = request
        self.batches = batches
        self.horizon = horizon
        self.cleaned: list[bytes] = []
        self._start_offset = start_offset
        self._barriers = barriers

    def run(self) -> CleanResult:
        compactor = Compactor(
            keys=KeyMap(bytes_for(sum(header.record_count for header, _ in self.batches))),
            start_offset=self._start_offset,
            horizon=self.horizon,
            producers=self.request.producers,
            aborted=self.request.aborted,
        )
        for header, batch in self.batches:
            compactor.note_batch(header, batch)
        self.cleaned = []
        for header, batch in self.batches:
            verdict = compactor.filter(header, batch)
            if verdict is FilterOutcome.KEPT:
                self.cleaned.append(batch)
            elif isinstance(verdict, bytes):
                self.cleaned.append(verdict)
            else:
                self._drop(header)
        counts = CleanCounts(
            bytes_read=sum(len(batch) for _, batch in self.batches),
            bytes_written=sum(map(len, self.cleaned)),
            records_read=compactor.records_read,
            records_dropped=compactor.records_dropped,
        )
        return CleanResult([], compactor.end_offset, compactor.delayed, counts)

    def _drop(self, header: BatchHeader) -> None:
        """Only the offsets stay; with those before them, if nothing stands between."""
        base, time = header.base_offset, header.max_timestamp
        last = read_header(self.cleaned[-1]) if self.cleaned else None
        if (
            self.request.merges
            and last is not None
            and is_filler(last)
            and last.leader_epoch == header.leader_epoch
            and last.base_offset >= self._start_offset
            and base not in self._barriers
        ):
            base, time = last.base_offset, max(time, last.max_timestamp)
            self.cleaned.pop()
        self.cleaned.append(empty_batch(base, header.next_offset, header.leader_epoch, time))
