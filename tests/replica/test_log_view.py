"""Entries leave one log and arrive in another as they were: batches, control entries, order."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chunks import joined
from memory_log import MemoryLog

from moldau.log.disk_log import open_disk_log, read_slice
from moldau.log.interface import ControlKind, LogConfig, LogStart, PartitionLog
from moldau.log.os_filesystem import OsFile, OsFiles
from moldau.model.errors import CorruptionError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, Offset, RaftIndex
from moldau.model.slices import FileSlice
from moldau.raft.membership import Members, encode_members
from moldau.raft.messages import AppendRequest
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import METADATA_GROUP, RaftEnvelope, decode_frame, encode_append
from moldau.testing.logs import append, flush

MEMBERS = Members((BrokerId(1), BrokerId(2)))
FIRST = RaftIndex(0)


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PartitionLog]:
    config = LogConfig(segment_bytes_max=16 * 1024, index_interval_bytes=256)
    opened: PartitionLog = (
        MemoryLog()
        if request.param == "memory"
        else open_disk_log(OsFiles(tmp_path), "log", config)
    )
    yield opened
    opened.close()


def fill(log: PartitionLog, seed: int) -> None:
    """Batches of all sizes, no-ops and changes of members, over several epochs."""
    rng = random.Random(seed)
    epoch = 1
    for _ in range(60):
        chance = rng.random()
        if chance < 0.15:
            epoch += 1
            log.append_control(Epoch(epoch), ControlKind.NOOP, b"")
        elif chance < 0.25:
            members = Members((BrokerId(1), BrokerId(rng.randint(2, 9))))
            log.append_control(Epoch(epoch), ControlKind.MEMBERSHIP, encode_members(members))
        else:
            size = rng.choice((1, 100, 3000, 12_000))
            append(log, count=rng.randint(1, 5), epoch=epoch, value=bytes(size))


def carry(view: GroupLog, start: RaftIndex, bytes_max: int) -> RaftEnvelope:
    """Read entries and send them through the codec."""
    reading = view.read(start, bytes_max)
    pieces = [
        read_slice(chunk) if isinstance(chunk, FileSlice) else bytes(chunk)
        for chunk in reading.chunks
    ]
    entries = b"".join(pieces)
    assert len(entries) == reading.size
    head = encode_append(METADATA_GROUP.wire, Epoch(99), start, Epoch(0), FIRST, reading.size)
    (parcel,) = decode_frame(memoryview(head + entries))
    assert isinstance(parcel.message, AppendRequest)
    assert parcel.message.entries[-1].end == reading.end
    return parcel


@pytest.mark.parametrize("bytes_max", [1, 500, 20_000, 1 << 30])
def test_a_log_is_copied_entry_by_entry_whatever_the_size_of_the_steps(
    log: PartitionLog, bytes_max: int
) -> None:
    fill(log, bytes_max)
    source, copy = GroupLog(log, MEMBERS), GroupLog(MemoryLog(), MEMBERS)
    stored = 0
    while copy.end_index < source.end_index:
        parcel = carry(source, copy.end_index, bytes_max)
        size, headers = copy.store(parcel.parts, copy.end_index)
        stored += len(headers)
        assert size == sum(header.size for header in headers)
    assert stored == len(list(log.headers(Offset(0))))
    assert copy.end_index == source.end_index
    assert copy.last_epoch == source.last_epoch
    assert copy.log.controls() == log.controls()
    assert list(copy.log.batches(Offset(0))) == list(log.batches(Offset(0)))


def test_only_entries_from_the_wanted_one_on_are_stored(log: PartitionLog) -> None:
    fill(log, 7)
    source = GroupLog(log, MEMBERS)
    whole = carry(source, FIRST, 1 << 30)
    assert isinstance(whole.message, AppendRequest)
    for entry in whole.message.entries:
        copy = GroupLog(MemoryLog(), MEMBERS)
        before = [other for other in whole.message.entries if other.start < entry.start]
        if before:
            part = carry(source, FIRST, 1 << 30)
            copy.store(part.parts, FIRST)
            copy.log.truncate(entry.start)
        copy.store(whole.parts, entry.start)
        assert list(copy.log.batches(Offset(0))) == list(log.batches(Offset(0)))
        assert copy.log.controls() == log.controls()


def test_a_small_read_is_done_once_for_all_followers_until_the_log_changes(
    log: PartitionLog,
) -> None:
    view = GroupLog(log, MEMBERS)
    append(log, value=b"first")
    append(log, value=b"other")
    reading = view.read(FIRST, 1 << 20)
    assert view.read(FIRST, 1 << 20) is reading
    assert view.read(FIRST, 1 << 19) is not reading
    view.truncate(RaftIndex(1))
    append(log, value=b"again")
    # As long as before, and as many entries: but others.
    data = joined(view.read(FIRST, 1 << 20).chunks)
    assert b"again" in data
    assert b"other" not in data
    append(log, value=b"more")
    assert b"more" in joined(view.read(FIRST, 1 << 20).chunks)
    view.reset(LogStart(Offset(0), 0, NO_EPOCH, b""), b"")
    assert view.read(FIRST, 1 << 20).chunks == []


def test_a_large_read_is_not_kept(log: PartitionLog) -> None:
    view = GroupLog(log, MEMBERS)
    append(log, value=bytes(100_000))
    assert view.read(FIRST, 1 << 20) is not view.read(FIRST, 1 << 20)


def test_batches_that_do_not_continue_the_log_are_taken_for_corruption() -> None:
    source, copy = MemoryLog(), MemoryLog()
    append(source)
    append(source)
    parcel = carry(GroupLog(source, MEMBERS), RaftIndex(1), 1 << 20)
    with pytest.raises(CorruptionError, match="offset 1"):
        GroupLog(copy, MEMBERS).store(parcel.parts, RaftIndex(1))


def test_a_boundary_is_where_the_batch_or_control_entry_begins(log: PartitionLog) -> None:
    fill(log, 3)
    flush(log)
    begins: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for header in log.headers(Offset(0)):
        first = log.index_of(header.base_offset)
        records = range(first, first + header.record_count)
        begins |= dict.fromkeys(records, first)
        epochs |= dict.fromkeys(records, header.leader_epoch)
    assert len(set(begins.values())) < len(begins)
    for start in (0, 1, 7, 20, 41):
        log.delete_before(Offset(start))
        view = GroupLog(log, MEMBERS)
        assert view.start_index == begins.get(view.start_index, view.start_index)
        assert view.start_index <= log.index_of(Offset(start))
        for number in range(view.start_index, view.end_index):
            index = RaftIndex(number)
            assert view.boundary(index) == begins.get(number, number)
            if number in epochs and number >= log.index_of(Offset(start)):
                assert view.epoch_of(index) == epochs[number]
        assert view.boundary(view.end_index) == view.end_index


def test_large_pieces_are_sent_from_the_file_and_small_ones_are_read_at_once(
    tmp_path: Path,
) -> None:
    log = open_disk_log(OsFiles(tmp_path), "log", LogConfig())
    view = GroupLog(log, MEMBERS)
    append(log, value=bytes(100))
    assert not any(isinstance(chunk, FileSlice) for chunk in view.read(FIRST, 1 << 20).chunks)
    append(log, value=bytes(100_000))
    assert any(isinstance(chunk, FileSlice) for chunk in view.read(RaftIndex(1), 1 << 20).chunks)


def test_an_append_ends_where_cold_data_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(segment_bytes_max=2_000)
    log = open_disk_log(OsFiles(tmp_path), "log", config)
    for _ in range(6):
        append(log, value=bytes(900))
    flush(log)
    for segment in log.segments:
        segment.file()
    view = GroupLog(log, MEMBERS)
    second = int(log.segments[1].base_offset)
    assert view.read(FIRST, 1 << 20).end == 6
    view.forget_read()
    monkeypatch.setattr(OsFile, "is_cached", lambda *_: False)
    assert view.read(FIRST, 1 << 20).end == second
    assert view.read(RaftIndex(second), 1 << 20).end > second
    log.close()
