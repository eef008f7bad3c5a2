"""Writes the new segments of one compaction, and merges small ones.

Old segments go into one new file while their remaining batches fit. There is no new file until
something changes; then the unchanged batches before it are copied.
"""

from moldau.log.compaction.job import CompactionJob, SegmentInfo
from moldau.log.filesystem import File, Files, write_all
from moldau.log.flush_mark import FLAG_STRICT, HEADER_BYTES, FlushMark
from moldau.log.scan import walk_batches
from moldau.log.segment import Segment
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset
from moldau.records.batch import BatchHeader, read_header
from moldau.records.compact import empty_batch, is_filler

WRITE_BYTES = 1024 * 1024
FLUSH_BYTES = 16 * 1024 * 1024
"""Bytes between flushes: one flush of a gigabyte would delay all others."""
RUN_OFFSETS_MAX = 1 << 30
"""Offsets that one empty batch may cover; the field has 31 bits."""


class _Run:
    """Adjacent batches that are dropped."""

    __slots__ = ("base", "end", "epoch", "is_filler", "position", "size", "time")

    def __init__(self, header: BatchHeader, position: int) -> None:
        self.base = header.base_offset
        self.end = header.next_offset
        self.epoch: Epoch = header.leader_epoch
        self.time = header.max_timestamp
        self.is_filler = is_filler(header)
        """It consists of one batch that is already empty."""
        self.position = position
        self.size = header.size


def job_segment(
    files: Files, job: CompactionJob, base_offset: Offset, compaction_round: int
) -> Segment:
    """An old or a new segment of the job's log, not opened."""
    return Segment(
        files,
        job.directory,
        base_offset,
        generation=job.generation,
        index_interval=job.index_interval_bytes,
        compaction_round=compaction_round,
    )


def segment_info(segment: Segment) -> SegmentInfo:
    return SegmentInfo(
        segment.base_offset,
        segment.compaction_round,
        segment.position,
        segment.end_offset,
        segment.first_timestamp,
        segment.max_timestamp,
    )


class CompactionWriter:
    """Receives the batches of the old segments in order: kept, relocated or dropped."""

    def __init__(self, files: Files, job: CompactionJob) -> None:
        self._files = files
        self._job = job
        self._barriers = frozenset(job.barriers)
        self._done: list[SegmentInfo] = []
        self._source: SegmentInfo | None = None
        self._source_file: File | None = None
        self._intact_end = HEADER_BYTES
        """While there is no new segment: up to here the source is unchanged."""
        self._segment: Segment | None = None
        self._made: list[Segment] = []
        self._buffers: list[bytes | memoryview] = []
        self._buffered = 0
        self._unflushed = 0
        self._run: _Run | None = None
        self._offset = job.sources[0].base_offset
        self.bytes_written = 0

    # ---- batches

    def begin_source(self, info: SegmentInfo, file: File) -> None:
        """The following batches are of this old segment."""
        if self._source is not None:
            if self._fits(info):
                self._open_segment()
            else:
                self._end_segment()
        if info.base_offset != self._offset:
            raise CorruptionError(
                f"{self._job.directory}: offset {self._offset} is missing before the segment at "
                f"{info.base_offset}"
            )
        self._source, self._source_file = info, file
        self._intact_end = HEADER_BYTES

    def _fits(self, info: SegmentInfo) -> bool:
        """Whether another old segment fits into the current new one."""
        source, segment = self._source, self._segment
        if source is None:
            return False
        bytes_now = (segment.position if segment else self._intact_end) - HEADER_BYTES
        first = segment.first_timestamp if segment else source.first_timestamp
        span_max = self._job.segment_ms_max
        return (
            bytes_now + info.position - HEADER_BYTES <= self._job.segment_bytes_max
            and (span_max < 0 or first < 0 or info.max_timestamp - first <= span_max)
            and info.end_offset - (segment or source).base_offset <= RUN_OFFSETS_MAX
        )

    def keep(self, header: BatchHeader, position: int, batch: bytes | memoryview) -> None:
        """The batch is unchanged."""
        self._end_run()
        self._advance(header)
        if self._segment is None:
            self._intact_end = position + header.size
        else:
            self._append(header, batch)

    def put(self, batch: bytes) -> None:
        """This batch replaces one with the same offsets."""
        self._end_run()
        header = read_header(batch)
        self._advance(header)
        self._open_segment()
        self._append(header, batch)

    def drop(self, header: BatchHeader, position: int) -> None:
        """Only the offsets of the batch remain."""
        self._advance(header)
        run = self._run
        if run is None or not self._joins(run, header):
            self._end_run()
            self._run = _Run(header, position)
            return
        run.end = header.next_offset
        run.time = max(run.time, header.max_timestamp)
        run.is_filler = False

    def _joins(self, run: _Run, header: BatchHeader) -> bool:
        return (
            self._job.merges
            and header.leader_epoch == run.epoch
            and header.base_offset not in self._barriers
            # Below the start the positions of control entries are not known.
            and run.base >= self._job.start_offset
            and header.next_offset - run.base <= RUN_OFFSETS_MAX
        )

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if run.is_filler and self._segment is None:
            self._intact_end = run.position + run.size
            return
        self._open_segment()
        batch = empty_batch(run.base, run.end, run.epoch, run.time)
        self._append(read_header(batch), batch)

    def _advance(self, header: BatchHeader) -> None:
        if header.base_offset != self._offset:
            raise CorruptionError(
                f"{self._job.directory}: offset {header.base_offset} follows {self._offset - 1}, "
                "batches are missing"
            )
        self._offset = header.next_offset

    # ---- files

    def _open_segment(self) -> None:
        """Create the new file, and copy what is unchanged so far into it."""
        source, file = self._source, self._source_file
        if self._segment is not None or source is None or file is None:
            return
        segment = job_segment(self._files, self._job, source.base_offset, self._job.round)
        self._segment = segment
        self._made.append(segment)
        segment.create()
        self._write(bytes(HEADER_BYTES), 0)
        for located, batch in walk_batches(file, HEADER_BYTES, self._intact_end):
            self._append(located.header, batch)

    def _append(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        segment = self._segment
        if segment is None:
            raise ValueError("no segment is open")
        index = segment.index
        time = header.max_timestamp
        if segment.position >= index.next_position:
            index.add(header.base_offset, segment.position, segment.max_timestamp)
        if time > segment.max_timestamp:
            segment.max_timestamp = time
        if segment.first_timestamp < 0:
            segment.first_timestamp = time
        segment.position += header.size
        segment.end_offset = header.next_offset
        self._buffers.append(batch)
        self._buffered += header.size
        if self._buffered >= WRITE_BYTES:
            self._write_buffers()

    def _write_buffers(self) -> None:
        if self._segment is None or not self._buffers:
            return
        data = self._buffers[0] if len(self._buffers) == 1 else b"".join(self._buffers)
        self._buffers.clear()
        self._write(data, self._segment.position - self._buffered)
        self._buffered = 0
        if self._unflushed >= FLUSH_BYTES:
            self._segment.file().flush()
            self._unflushed = 0

    def _write(self, data: bytes | memoryview, position: int) -> None:
        if self._segment is None:
            return
        write_all(self._segment.file(), data, position)
        self.bytes_written += len(data)
        self._unflushed += len(data)

    def _end_segment(self) -> None:
        """The old segments since the last call are complete."""
        self._end_run()
        self._write_buffers()
        source, segment = self._source, self._segment
        self._segment = self._source = None
        if source is None:
            return
        if segment is None:
            self._done.append(source)
            return
        end = segment.end_offset
        segment.write_mark(
            FlushMark(
                flags=FLAG_STRICT if self._job.is_strict else 0,
                # Older than every mark of the log itself: it is never the newest.
                sequence=0,
                base_offset=segment.base_offset,
                flushed_offset=end,
                flushed_position=segment.position,
                covered_offset=end,
                end_position=segment.position,
                control_count=0,
                first_timestamp=segment.first_timestamp,
                max_timestamp=segment.max_timestamp,
                epochs_crc=0,
            )
        )
        segment.flush()
        self._unflushed = 0
        segment.save_index(segment.position)
        segment.close_file()
        self._done.append(segment_info(segment))

    def finish(self) -> list[SegmentInfo]:
        """The segments that replace the old ones, durable, including their names."""
        self._end_segment()
        self._files.sync_dir(self._job.directory)
        return self._done

    def abandon(self) -> None:
        """The compaction failed: remove the new files, if the disk allows it."""
        self._buffers.clear()
        for segment in self._made:
            try:
                segment.remove()
            except OSError:
                # The next open of the log removes them.
                return
