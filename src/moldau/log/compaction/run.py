"""Executes one compaction: reads the old segments, writes the new ones. Runs in any process.

No existing file is changed. The names of new files contain the job's round, so that they are not
part of the log before the file `cleaned` lists them. All of them are on the disk when this returns.
A segment in which nothing changes is not written again.
"""

import time
from collections.abc import Iterator

from moldau.log.compaction.job import CompactionCounts, CompactionJob, CompactionResult, SegmentInfo
from moldau.log.compaction.key_map import KeyMap, bytes_for
from moldau.log.compaction.rules import Compactor, FilterOutcome
from moldau.log.compaction.segment_writer import CompactionWriter, job_segment
from moldau.log.filesystem import File, Files
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.scan import LocatedBatch, walk_batches, walk_headers

_HEADER_CHUNK_BYTES = 64 * 1024


class _Source:
    """One of the old segments."""

    def __init__(self, files: Files, job: CompactionJob, info: SegmentInfo) -> None:
        self.info = info
        self._segment = job_segment(files, job, info.base_offset, info.round)
        self._files = files

    def open(self) -> File:
        """Open only while it is read: a log may have more segments than a process descriptors."""
        return self._files.open(self._segment.path, writable=False)

    def headers(self) -> Iterator[LocatedBatch]:
        """Raises CorruptionError if they do not reach the segment's end."""
        reached = HEADER_BYTES
        for located in walk_headers(
            self.open(), reached, self.info.position, chunk_bytes=_HEADER_CHUNK_BYTES
        ):
            yield located
            reached = located.position + located.header.size
        if reached != self.info.position:
            raise self._segment.damaged(reached, "no batch header where one was written")

    def batches(self, file: File) -> Iterator[tuple[LocatedBatch, bytes | memoryview]]:
        """Raises CorruptionError on a checksum mismatch."""
        reached = HEADER_BYTES
        for located, batch in walk_batches(file, reached, self.info.position):
            yield located, batch
            reached = located.position + located.header.size
        if reached != self.info.position:
            raise self._segment.damaged(reached, "checksum mismatch")


def run_compaction(files: Files, job: CompactionJob) -> CompactionResult:
    """Raises CorruptionError, OSError."""
    began = time.perf_counter()
    sources = [_Source(files, job, info) for info in job.sources]
    compactor = _survey(job, sources)
    writer = CompactionWriter(files, job)
    try:
        for source in sources:
            file = source.open()
            writer.begin_source(source.info, file)
            for (position, header), batch in source.batches(file):
                outcome = compactor.filter(header, batch)
                if outcome is FilterOutcome.KEPT:
                    writer.keep(header, position, batch)
                elif outcome is FilterOutcome.DROPPED:
                    writer.drop(header, position)
                elif isinstance(outcome, bytes):
                    writer.put(outcome)
        segments = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return CompactionResult(
        segments,
        compactor.end_offset,
        compactor.delayed,
        CompactionCounts(
            bytes_read=sum(info.position - HEADER_BYTES for info in job.sources),
            bytes_written=writer.bytes_written,
            records_read=compactor.records_read,
            records_dropped=compactor.records_dropped,
            seconds=time.perf_counter() - began,
        ),
    )


def _survey(job: CompactionJob, sources: list[_Source]) -> Compactor:
    """Collect the producers of the whole log and the newest keys of its dirty part."""
    dirty_records = 0
    for source in sources:
        if source.info.end_offset > job.first_dirty:
            dirty_records += sum(header.record_count for _, header in source.headers())
    compactor = Compactor(
        keys=KeyMap(min(job.map_bytes_max, bytes_for(dirty_records))),
        start_offset=job.start_offset,
        horizon=job.horizon,
        producers=job.producers,
        aborted=job.aborted,
    )
    for source in sources:
        if source.info.end_offset <= job.first_dirty:
            for _, header in source.headers():
                compactor.note_header(header)
            continue
        for (_, header), batch in source.batches(source.open()):
            if header.next_offset <= job.first_dirty:
                compactor.note_header(header)
            elif not compactor.note_batch(header, batch):
                return compactor
    return compactor


def remove_files(files: Files, paths: list[str]) -> None:
    """Remove unused files of a log; missing ones are ignored."""
    for path in paths:
        if files.exists(path):
            files.remove(path)
