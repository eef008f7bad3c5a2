"""Owns the work of one cleaning: read the old segments, write the new ones. Runs in any process.

Nothing that exists is changed. The new files are named after the job's round, so that nobody takes
them for the log's before the file `cleaned` names them, and all of it is on the disk when this
returns. A segment in which nothing changes is not written again.
"""

import time
from collections.abc import Iterator

from moldau.log.clean import CleanCounts, CleanJob, CleanResult, SegmentInfo
from moldau.log.clean_write import CleanWriter
from moldau.log.compactor import Compactor, FilterOutcome
from moldau.log.filesystem import File, Files
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.keymap import KeyMap, bytes_for
from moldau.log.scan import LocatedBatch, walk_batches, walk_headers
from moldau.log.segment import Segment

_HEADER_CHUNK_BYTES = 64 * 1024


class _Source:
    """One of the old segments."""

    def __init__(self, files: Files, job: CleanJob, fact: SegmentInfo) -> None:
        self.fact = fact
        self._segment = Segment(
            files,
            job.directory,
            fact.base_offset,
            generation=job.generation,
            index_interval=job.index_interval_bytes,
            clean_round=fact.round,
        )
        self._files = files

    def open(self) -> File:
        """Held by who reads it, no longer: a log may have more segments than a process files."""
        return self._files.open(self._segment.path, writable=False)

    def headers(self) -> Iterator[LocatedBatch]:
        """CorruptionError if they do not lead to the segment's end."""
        reached = HEADER_BYTES
        for placed in walk_headers(
            self.open(), reached, self.fact.position, chunk_bytes=_HEADER_CHUNK_BYTES
        ):
            yield placed
            reached = placed.position + placed.header.size
        if reached != self.fact.position:
            raise self._segment.damaged(reached, "no batch begins where one was written")

    def batches(self, file: File) -> Iterator[tuple[LocatedBatch, bytes | memoryview]]:
        """CorruptionError if one fails its checksum."""
        reached = HEADER_BYTES
        for placed, batch in walk_batches(file, reached, self.fact.position):
            yield placed, batch
            reached = placed.position + placed.header.size
        if reached != self.fact.position:
            raise self._segment.damaged(reached, "the batch there fails its checksum")


def run_clean(files: Files, job: CleanJob) -> CleanResult:
    """Do the job. Raises CorruptionError, OSError."""
    began = time.perf_counter()
    sources = [_Source(files, job, fact) for fact in job.sources]
    compactor = _survey(job, sources)
    writer = CleanWriter(files, job)
    try:
        for source in sources:
            file = source.open()
            writer.begin_source(source.fact, file)
            for (position, header), batch in source.batches(file):
                verdict = compactor.filter(header, batch)
                if verdict is FilterOutcome.KEPT:
                    writer.keep(header, position, batch)
                elif verdict is FilterOutcome.GONE:
                    writer.drop(header, position)
                elif isinstance(verdict, bytes):
                    writer.put(verdict)
        segments = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return CleanResult(
        segments,
        compactor.end_offset,
        compactor.delayed,
        CleanCounts(
            bytes_read=sum(fact.position - HEADER_BYTES for fact in job.sources),
            bytes_written=writer.bytes_written,
            records_read=compactor.records_read,
            records_dropped=compactor.records_dropped,
            seconds=time.perf_counter() - began,
        ),
    )


def _survey(job: CleanJob, sources: list[_Source]) -> Compactor:
    """Learn the producers of the whole log and the newest keys of its dirty part."""
    dirty_records = 0
    for source in sources:
        if source.fact.end_offset > job.first_dirty:
            dirty_records += sum(header.record_count for _, header in source.headers())
    compactor = Compactor(
        keys=KeyMap(min(job.map_bytes_max, bytes_for(dirty_records))),
        start_offset=job.start_offset,
        horizon=job.horizon,
        producers=job.producers,
        aborted=job.aborted,
    )
    for source in sources:
        if source.fact.end_offset <= job.first_dirty:
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
    """Remove what a log has no more use for; what is gone already is gone."""
    for path in paths:
        if files.exists(path):
            files.remove(path)
