"""Mistakes of compaction."""

from typing import Any

from msgspec.structs import replace

from moldau.log.compaction.job import CompactionRequest
from moldau.log.compaction.segment_writer import RUN_OFFSETS_MAX, CompactionWriter, _Run
from moldau.log.compaction.swap import LogCompaction
from moldau.records.batch import BatchHeader
from sim.mutants import mutant


def _clean_to_the_end(self: LogCompaction, request: CompactionRequest) -> Any:
    return _compactable(self, replace(request, end_offset=self._state.end_offset))


_compactable = LogCompaction._compactable


def _join_all(self: CompactionWriter, run: _Run, header: BatchHeader) -> bool:
    length = header.next_offset - run.base
    return run.base >= self._job.start_offset and length <= RUN_OFFSETS_MAX


MUTANTS = (
    mutant(
        "CleansTheUncommitted",
        "log",
        "compaction goes beyond what is committed, and drops what a record replaced that is cut",
        {"isolate": 3.0, "forsake": 5.0},
        (LogCompaction, "_compactable", _clean_to_the_end),
        keyed=4,
        flush_seconds=0.2,
    ),
    mutant(
        "FillsOverControls",
        "log",
        "one empty batch takes the place of several, also where a control entry lies between",
        {"kill": 3.0, "isolate": 5.0},
        (CompactionWriter, "_joins", _join_all),
        keyed=2,
    ),
)
