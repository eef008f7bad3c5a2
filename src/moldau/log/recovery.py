"""Recovery: opens a log, and finds which bytes in its directory belong to it.

After a clean close the flush marks suffice and nothing is scanned. Otherwise the batches are
scanned from the last mark on, up to the first bytes that do not continue the log (flush_mark.py
explains the marks): below the mark these are corruption, and nothing is changed; beyond it they are
a torn tail, which is truncated, so that old batches cannot come back later.

Every step can be interrupted and repeated: nothing is removed before the reason for it is durable.
"""

import re
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from moldau.log.compaction.checkpoint import CompactionCheckpoint
from moldau.log.compaction.job import CompactionState
from moldau.log.control_entries import ControlEntries
from moldau.log.control_journal import ControlJournal
from moldau.log.epochs import EpochCache
from moldau.log.filesystem import Files
from moldau.log.flush_mark import FLAG_STRICT, HEADER_BYTES, FlushMark
from moldau.log.index import INDEX_SAVE_BYTES, SegmentIndex
from moldau.log.interface import FlushPolicy, LogConfig, LogStart
from moldau.log.scan import check_run, find_valid_batch, is_zero, walk_headers
from moldau.log.segment import Segment, find_segments
from moldau.log.snapshots import drop_snapshots
from moldau.log.start_file import EMPTY_START, BatchEpochs, Head, load_head, save_head
from moldau.model.errors import CorruptionError
from moldau.model.ids import FIRST_LOG, NO_EPOCH, Epoch, LogId, Offset, RaftIndex

_SIDE_FILE = re.compile(r"^(?:control|epochs|cleaned)(?:-([1-9]\d*))?(?:\.journal)?$")
CHECK_BYTES = 4 * 1024 * 1024
"""Flushed data before the mark that is also checked after a crash, to find bit rot early."""


class RecoveredLog(Struct, kw_only=True):
    """The state of a log that was opened."""

    log_id: LogId
    generation: int
    start: LogStart
    segments: list[Segment]
    controls: ControlEntries
    epochs: EpochCache
    batch_epochs: BatchEpochs
    journal: ControlJournal
    checkpoint: CompactionCheckpoint
    end_offset: Offset
    sequence: int
    was_clean: bool


class _Tail(Struct):
    """Where the scan of the batches ended, and what it found."""

    last: int
    """Number of the segment in which the log ends."""
    position: int
    offset: Offset
    first: int
    """Number of the segment in which the scan began."""
    is_epoch_lost: bool = False
    """It ended at a batch whose epoch began with a control entry that was lost."""
    epochs: list[tuple[Epoch, Offset]] = field(default_factory=list)
    """Epoch and offset of the first batch and of each with a new epoch."""


def recover(files: Files, directory: str, config: LogConfig, new_id: LogId) -> RecoveredLog:
    """Open the log in `directory`. Raises CorruptionError, with nothing changed."""
    head = load_head(files, directory) or _begin(files, directory, new_id)
    generation, start = head.generation, head.start
    checkpoint = CompactionCheckpoint(files, directory, generation)
    checkpoint.load()
    segments, leftovers = _find_segments(
        files, directory, generation, start, checkpoint.state, config
    )
    marks = [segment.read_mark() for segment in segments]
    top = max((mark for mark in marks if mark), key=lambda mark: mark.sequence, default=None)
    if segments and segments[0].base_offset > start.offset:
        _drop_headless(files, directory, start, segments, top, config)
    journal = ControlJournal(files, directory, generation)
    controls = _load_controls(journal, start, top)
    batch_epochs = BatchEpochs(files, directory, generation)
    epochs_known = batch_epochs.load()

    tail = None
    end = start.offset
    if segments:
        clean = _clean_end(segments, marks, top)
        are_epochs_lost = not epochs_known and top is not None and top.epochs_crc != 0
        known = {entry.epoch for entry in controls.entries}
        known.update(epoch for epoch, _ in batch_epochs.starts)

        def is_known(epoch: Epoch) -> bool:
            return epoch <= start.epoch or epoch in known or are_epochs_lost

        tail = None if clean else _walk_tail(segments, marks, is_known)
        if tail is not None:
            _check_truncatable(segments, tail, top, config)
        _open_unscanned(segments, marks, tail)
        end = tail.offset if tail else segments[-1].end_offset
    if end < start.offset:
        # Retention went beyond the end of an unflushed log: all of it is below the start.
        end = start.offset
    count = controls.below(Offset(end + 1))

    if not epochs_known and top is not None and top.epochs_crc:
        batch_epochs.starts = _epochs_of_headers(segments, tail)
    epochs_found = batch_epochs.starts
    # An epoch is written before its batch, so the batch may be missing.
    batch_epochs.starts = [e for e in epochs_found if start.offset <= e[1] < end]
    kept = ControlEntries(controls.base)
    for entry in controls.entries[: count - controls.base]:
        kept.append(entry)
    epochs = _build_epochs(start, kept, batch_epochs, tail, directory)

    state = RecoveredLog(
        log_id=head.log_id,
        generation=generation,
        start=start,
        segments=segments,
        controls=kept,
        epochs=epochs,
        batch_epochs=batch_epochs,
        journal=journal,
        checkpoint=checkpoint,
        end_offset=end,
        sequence=top.sequence if top else 0,
        was_clean=tail is None,
    )
    if kept.count > (top.control_count if top else 0):
        journal.flush_found()
    _repair(files, directory, state, tail, top, config)
    for leftover in leftovers:
        leftover.remove()
    if checkpoint.state.end > end:
        # Durably, or they would become part of the log once `cleaned` no longer covers them.
        files.sync_dir(directory)
        checkpoint.save(checkpoint.state.clipped(end))
    if epochs_found != batch_epochs.starts or (epochs_found and not epochs_known):
        batch_epochs.save()
    for segment in segments:
        if segment.position - segment.index.loaded_from >= INDEX_SAVE_BYTES:
            # All of it is flushed now: the next start need not scan it again.
            with suppress(OSError):
                segment.save_index(segment.position)
        segment.close_file()
    return state


def _begin(files: Files, directory: str, new_id: LogId) -> Head:
    """A log without a `start` file: one that has never needed it, or a new one.

    A new log creates its journal file before anything is acknowledged, and stores its id before
    that: so an empty log can be distinguished from a lost one.
    """
    first = Head(FIRST_LOG, 0, EMPTY_START)
    journal = ControlJournal(files, directory, 0)
    if files.exists(journal.path) or find_segments(files, directory, index_interval=1):
        return first
    head = first._replace(log_id=new_id)
    if new_id != FIRST_LOG:
        save_head(files, directory, head)
    journal.begin()
    return head


def _find_segments(
    files: Files,
    directory: str,
    generation: int,
    start: LogStart,
    compacted: CompactionState,
    config: LogConfig,
) -> tuple[list[Segment], list[Segment]]:
    """The segments of the current generation, and the leftovers of compactions.

    Leftovers of a reset or of retention are removed. Those of a compaction are kept until the log
    is known to be complete without them.
    """
    segments = []
    leftovers = []
    for name in files.listdir(directory):
        match = _SIDE_FILE.match(name)
        if match and int(match[1] or 0) < generation:
            files.remove(f"{directory}/{name}")
    for segment in find_segments(files, directory, index_interval=config.index_interval_bytes):
        found = segment.generation
        if found > generation:
            raise CorruptionError(
                f"{segment.path}: is of generation {found}, but {directory}/start of {generation}. "
                f"Restore the start file, or the partition from a replica."
            )
        if found < generation:
            segment.remove()
        elif compacted.holds(segment.base_offset, segment.compaction_round):
            segments.append(segment)
        else:
            leftovers.append(segment)
    while len(segments) > 1 and segments[1].base_offset <= start.offset:
        segments.pop(0).remove()
    return segments, leftovers


def _drop_headless(
    files: Files,
    directory: str,
    start: LogStart,
    segments: list[Segment],
    top: FlushMark | None,
    config: LogConfig,
) -> None:
    """The first segment is missing: its name was lost before any flush, or it was deleted."""
    strict = top.is_strict if top is not None else config.flush is FlushPolicy.ALWAYS
    if not strict or (top is not None and top.flushed_offset > start.offset):
        raise CorruptionError(
            f"{directory}: the log starts at offset {start.offset}, but the first segment at "
            f"{segments[0].base_offset}. Nothing was changed. Restore the missing segment files."
        )
    while segments:
        segments.pop().remove()
        files.sync_dir(directory)


def _load_controls(
    journal: ControlJournal, start: LogStart, top: FlushMark | None
) -> ControlEntries:
    """The journal's entries from the log's start on."""
    first, entries = journal.load()
    known = max(first + len(entries), start.control_count)
    if entries and first > start.control_count:
        raise CorruptionError(
            f"{journal.path}: begins with control entry {first}, but the log with "
            f"{start.control_count}. Restore the file, or the partition from a replica."
        )
    if top is not None and known < top.control_count:
        raise CorruptionError(
            f"{journal.path}: has {known} control entries, but {top.control_count} were flushed. "
            f"Nothing was changed. Restore the file, or the partition from a replica."
        )
    controls = ControlEntries(start.control_count)
    for entry in entries[max(0, start.control_count - first) :]:
        controls.append(entry)
    return controls


def _clean_end(
    segments: list[Segment], marks: list[FlushMark | None], top: FlushMark | None
) -> bool:
    """Whether the log was closed cleanly and not changed since."""
    last = marks[-1]
    return (
        last is not None
        and last is top
        and last.is_clean
        and segments[-1].file().size() == last.end_position
    )


def _walk_tail(
    segments: list[Segment],
    marks: list[FlushMark | None],
    is_known: Callable[[Epoch], bool],
) -> _Tail:
    """Scan from the last segment with flushed data to the end of the log.

    The log ends before a batch of an unknown epoch: the control entry that began the epoch was
    lost, and without it the batch has another Raft index.
    """
    first = len(segments) - 1
    while first > 0:
        mark = marks[first]
        if mark is not None and mark.flushed_offset >= segments[first].base_offset:
            break
        first -= 1
    segment, mark = segments[first], marks[first]
    offset, position = segment.base_offset, HEADER_BYTES
    if mark is not None and mark.flushed_position - HEADER_BYTES > CHECK_BYTES:
        # The index has a batch boundary shortly before the mark.
        segment.opened(
            mark.flushed_position, mark.flushed_offset, mark.first_timestamp, mark.max_timestamp
        )
        index = segment.loaded_index()
        entry = index.floor_position(mark.flushed_position - CHECK_BYTES)
        if entry is not None:
            offset, position = entry
    tail = _Tail(first, position, offset, first)
    epoch = NO_EPOCH
    for number in range(first, len(segments)):
        segment = segments[number]
        if number > first:
            if segment.base_offset != tail.offset:
                break
            tail.position = HEADER_BYTES
        tail.last = number
        index = SegmentIndex(tail.position, segment.index.interval)
        run = check_run(segment.file(), tail.position, tail.offset, epoch, index.note, is_known)
        if run.epochs:
            epoch = run.epochs[-1][0]
            tail.epochs += run.epochs
        tail.position, tail.offset = run.end, run.offset
        tail.is_epoch_lost = run.is_epoch_lost
        known = marks[number]
        first_time, largest = run.first_timestamp, run.max_timestamp
        if known is not None:
            largest = max(largest, known.max_timestamp)
            if known.first_timestamp >= 0:
                first_time = known.first_timestamp
        segment.opened(tail.position, tail.offset, first_time, largest, index)
    return tail


def _check_truncatable(
    segments: list[Segment], tail: _Tail, top: FlushMark | None, config: LogConfig
) -> None:
    """Raise CorruptionError unless everything beyond the end of the scan may be truncated."""
    segment = segments[tail.last]
    if top is not None and tail.offset < top.flushed_offset:
        raise segment.damaged(
            tail.position,
            f"offset {tail.offset} is unreadable, but all below {top.flushed_offset} was flushed",
        )
    strict = top.is_strict if top is not None else config.flush is FlushPolicy.ALWAYS
    if strict or tail.is_epoch_lost:
        return
    # Without flush=always, bytes were acknowledged that were never flushed. If they are provably
    # not a torn tail, the operator must decide.
    size = segment.file().size()
    found = find_valid_batch(segment.file(), tail.position, size, tail.offset)
    if found is not None:
        raise segment.damaged(tail.position, f"a bad batch is followed by a valid one at {found}")
    for later in segments[tail.last + 1 :]:
        before = Offset(later.base_offset - 1)
        size = later.file().size()
        if find_valid_batch(later.file(), HEADER_BYTES - 1, size, before) is not None:
            raise segment.damaged(
                tail.position, f"offset {tail.offset} is missing, but {later.path} has batches"
            )


def _open_unscanned(
    segments: list[Segment], marks: list[FlushMark | None], tail: _Tail | None
) -> None:
    """Open the segments that were not scanned: by their marks, otherwise by their headers."""
    scanned = tail.first if tail is not None else len(segments)
    for number in range(min(scanned, len(segments))):
        segment, mark = segments[number], marks[number]
        last = number + 1 == len(segments)
        end = mark.covered_offset if last and mark else segment.end_offset
        if not last:
            end = segments[number + 1].base_offset
        if mark is not None and mark.covered_offset == end:
            segment.opened(mark.end_position, end, mark.first_timestamp, mark.max_timestamp)
        else:
            _open_by_headers(segment, end)
        if number < len(segments) - 1:
            segment.release()


def _open_by_headers(segment: Segment, end: Offset) -> None:
    """A closed segment whose mark is corrupt or old: its batches determine its length."""
    position, offset = HEADER_BYTES, segment.base_offset
    first, largest = segment.first_timestamp, segment.max_timestamp
    file = segment.file()
    for at, header in walk_headers(file, HEADER_BYTES, file.size()):
        if header.base_offset != offset or offset >= end:
            break
        if first < 0:
            first = header.max_timestamp
        largest = max(largest, header.max_timestamp)
        position, offset = at + header.size, header.next_offset
    if offset != end:
        raise segment.damaged(position, f"it ends at offset {offset} instead of {end}")
    segment.opened(position, end, first, largest)


def _epochs_of_headers(segments: list[Segment], tail: _Tail | None) -> list[tuple[Epoch, Offset]]:
    """Every change of epoch in the batches: slow, only if the epoch file is lost."""
    starts: list[tuple[Epoch, Offset]] = []
    epoch = NO_EPOCH
    last = tail.last if tail is not None else len(segments) - 1
    for segment in segments[: last + 1]:
        for _, header in walk_headers(segment.file(), HEADER_BYTES, segment.position):
            if header.leader_epoch > epoch:
                epoch = header.leader_epoch
                starts.append((epoch, header.base_offset))
    return starts


def _build_epochs(
    start: LogStart,
    controls: ControlEntries,
    batch_epochs: BatchEpochs,
    tail: _Tail | None,
    directory: str,
) -> EpochCache:
    """The epoch cache from journal, epoch file and batches; CorruptionError if they disagree."""
    cache = EpochCache()
    index = RaftIndex(start.offset + start.control_count)
    seen = tail.epochs if tail is not None else []
    starts = [
        (RaftIndex(entry.offset + ordinal), entry.epoch, entry.offset)
        for ordinal, entry in enumerate(controls.entries, controls.base)
    ]
    starts += [
        (controls.index_of(max(offset, start.offset)), epoch, max(offset, start.offset))
        for epoch, offset in batch_epochs.starts + seen
        if offset >= start.offset
    ]
    try:
        cache.begin(start.epoch, index, start.offset)
        for start_index, epoch, offset in sorted(starts):
            cache.begin(epoch, start_index, offset)
    except ValueError as error:
        raise CorruptionError(
            f"{directory}: the epochs of batches and of the control journal disagree ({error}). "
            f"Nothing was changed. Restore the partition from a replica or a backup."
        ) from error
    for epoch, offset in seen:
        if offset >= start.offset and cache.at_offset(offset) != epoch:
            raise CorruptionError(
                f"{directory}: the batch at offset {offset} is of epoch {epoch}, by the control "
                f"journal of {cache.at_offset(offset)}. Restore the partition from a replica."
            )
    return cache


def _repair(
    files: Files,
    directory: str,
    state: RecoveredLog,
    tail: _Tail | None,
    top: FlushMark | None,
    config: LogConfig,
) -> None:
    """Truncate what does not belong to the log, data first; flush and mark the rest."""
    segments = state.segments
    if segments and state.end_offset > segments[-1].end_offset and tail is None:
        _drop_all(files, directory, segments)
    if tail is not None:
        if state.end_offset > tail.offset:
            _drop_all(files, directory, segments)
        else:
            _repair_tail(files, directory, state, tail, top, config)
    drop_snapshots(files, directory, state.end_offset)
    state.journal.truncate(state.controls.count)


def _drop_all(files: Files, directory: str, segments: list[Segment]) -> None:
    """Oldest first: what remains is always the end of a log below its start."""
    while segments:
        segments.pop(0).remove()
        files.sync_dir(directory)


def _repair_tail(
    files: Files,
    directory: str,
    state: RecoveredLog,
    tail: _Tail,
    top: FlushMark | None,
    config: LogConfig,
) -> None:
    segments = state.segments
    later = segments[tail.last + 1 :]
    last = segments[tail.last]
    file = last.file()
    torn = not is_zero(file, tail.position, file.size())
    settled = (
        top is not None
        and top.flushed_offset == top.covered_offset == tail.offset
        and top.control_count <= state.controls.count
    )
    if settled and not torn and not later:
        _release_scanned(segments, tail)
        return
    strict = FLAG_STRICT if config.flush is FlushPolicy.ALWAYS else 0
    flushed = top.flushed_offset if top is not None else segments[tail.first].base_offset
    for number in range(tail.first, tail.last + 1):
        segment = segments[number]
        # After a killed process the page cache may be newer than the disk: only after a flush is
        # it known which slot contains the last durable mark.
        segment.file().flush()
        state.sequence += 1
        inside = segment.base_offset <= flushed <= segment.end_offset
        segment.write_mark(
            FlushMark(
                flags=strict,
                sequence=state.sequence,
                base_offset=segment.base_offset,
                flushed_offset=flushed,
                flushed_position=segment.position_of(flushed)[1] if inside else 0,
                covered_offset=segment.end_offset,
                end_position=segment.position,
                control_count=state.controls.count,
                first_timestamp=segment.first_timestamp,
                max_timestamp=segment.max_timestamp,
                epochs_crc=state.batch_epochs.crc,
            )
        )
        segment.flush()
    files.sync_dir(directory)
    # Newest first, each durably: a gap in the middle would look like corruption.
    for segment in reversed(later):
        segment.remove()
        files.sync_dir(directory)
    del segments[tail.last + 1 :]
    if torn:
        file.truncate(tail.position)
        file.flush()
    _release_scanned(segments, tail)


def _release_scanned(segments: list[Segment], tail: _Tail) -> None:
    for segment in segments[tail.first : tail.last]:
        segment.release()
