"""What of a partition is copied: without gaps, once, and with the ends of its transactions."""

from pathlib import Path

import pytest
from batch_log import TIME, Log, stored
from msgspec.structs import replace

from moldau.client.backup.batch_source import StartMovedError, stored_batches
from moldau.client.backup.manifests import PartitionCopy
from moldau.client.backup.partition_copier import PartitionCopier, Pin
from moldau.client.backup.stores import DirectoryStore
from moldau.client.backup.work import Pace
from moldau.client.errors import ClientError
from moldau.model.ids import Epoch, Offset
from moldau.records.batch import read_header
from moldau.records.compact import empty_batch


def pin(log: Log, end: int, before: PartitionCopy | None = None, start: int = 0) -> Pin:
    return Pin("t", "0f", 0, start, end, log.end, before)


def copy(
    store: DirectoryStore, log: Log, end: int, before: PartitionCopy | None = None, start: int = 0
) -> PartitionCopy:
    return PartitionCopier(store, log, pin(log, end, before, start), Pace()).run()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "b")


def test_a_second_backup_copies_only_what_is_new(store: DirectoryStore):
    log = Log()
    for _ in range(5):
        log.write(3)
    first = copy(store, log, 9)
    assert stored(store, first) == log.batches[:3]
    log.fetched.clear()
    second = copy(store, log, log.end, first)
    assert stored(store, second) == log.batches
    assert min(log.fetched) == 9


def test_a_compacted_topic_is_copied_afresh(store: DirectoryStore):
    log = Log()
    log.write()
    log.write()
    first = copy(store, log, 2)
    # Compaction removed the record and then its tombstone; the backup never had the tombstone.
    log.batches[0] = empty_batch(Offset(0), Offset(1), Epoch(0), TIME)
    log.write()
    compacted = pin(log, log.end, first)._replace(compacted=True)
    made = PartitionCopier(store, log, compacted, Pace()).run()
    assert stored(store, made) == log.batches


def test_a_compacted_topic_is_copied_up_to_what_may_have_replaced_its_records(
    store: DirectoryStore,
):
    log = Log()
    for _ in range(3):
        log.write(producer=7)
    log.mark(7)
    pinned = pin(log, log.end)._replace(compacted=True)
    # Compaction removes a record before it is copied, for one after the end that was pinned.
    log.write(producer=8)
    log.mark(8)
    log.batches[1] = empty_batch(Offset(1), Offset(2), Epoch(0), TIME)
    made = PartitionCopier(store, log, pinned, Pace()).run()
    assert stored(store, made) == log.batches
    assert (made.end, made.markers, len(made.segments)) == (log.end, (), 1)


def test_files_of_a_backup_that_was_cut_short_are_used(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("moldau.client.backup.partition_copier.SEGMENT_BYTES", 1)
    log = Log()
    for _ in range(6):
        log.write()
    copy(store, log, 4)
    log.fetched.clear()
    # Without a manifest: the files alone.
    made = copy(store, log, 6)
    assert stored(store, made) == log.batches
    assert min(log.fetched) == 4
    # One of them is damaged: it is copied again.
    bad = store.root / made.segments[1].path("0f", 0)
    bad.write_bytes(b"x")
    assert stored(store, copy(store, log, 6)) == log.batches


def test_a_log_with_another_history_is_not_added_to_a_backup(store: DirectoryStore):
    log, other = Log(), Log()
    for made in (log, other):
        made.write(2)
    log.write()
    first = copy(store, log, log.end)
    assert copy(store, log, log.end, first) == first
    # Shorter than the other one, then as long, and longer.
    for at in range(3):
        if at:
            other.write(producer=7)
            other.mark(7)
        copier = PartitionCopier(store, other, pin(other, other.end, first), Pace())
        assert stored(store, copier.run()) == other.batches
        assert copier.has_lost
        assert stored(store, first) == log.batches, "can be restored as it was"
    # The same bytes, written in another epoch: what came before may differ.
    changed = first.last_epoch + 1
    copier = PartitionCopier(store, log, pin(log, 3, replace(first, last_epoch=changed)), Pace())
    assert stored(store, copier.run()) == log.batches
    assert copier.has_lost
    older = copy(store, log, log.end, replace(first, last_epoch=-1))
    assert older.segments == first.segments
    # Retention has deleted what could be compared.
    other.start = 3
    assert copy(store, other, other.end, first, start=3).start == 3


def test_files_of_a_backup_that_was_cut_short_before_records_were_lost_are_not_used(
    store: DirectoryStore,
):
    log, other = Log(), Log()
    for made in (log, other):
        made.write(2)
    first = copy(store, log, log.end)
    log.write(2)
    copy(store, log, log.end, first)
    # Its file has the next offsets; but the log lost those, and has others now.
    other.write(producer=7)
    other.mark(7)
    copier = PartitionCopier(store, other, pin(other, other.end, first), Pace())
    assert stored(store, copier.run()) == other.batches
    assert not copier.has_lost


def test_a_file_that_is_gone_is_copied_again_and_what_follows_it_used(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("moldau.client.backup.partition_copier.SEGMENT_BYTES", 1)
    log = Log()
    log.write()
    log.write(producer=7)
    log.write(producer=8)
    log.mark(8)
    stable = log.end
    log.mark(7)
    first = copy(store, log, stable)
    assert first.markers == (log.batches[-1],)
    for number in (0, 1, 3):
        again = DirectoryStore(store.root)
        again.delete(first.segments[number].path("0f", 0))
        second = copy(again, log, log.end, first)
        assert stored(again, second) == log.batches
        assert second.markers == ()
        assert copy(again, log, stable, first).markers == first.markers


def test_markers_beyond_the_end_are_kept_for_transactions_below(store: DirectoryStore):
    log = Log()
    log.write(2, producer=7)
    log.write(1, producer=8)
    log.mark(8, is_commit=False)
    stable = log.end
    log.write(1, producer=9)
    log.mark(7)
    made = copy(store, log, stable)
    assert made.markers == (log.batches[-1],)
    # The marker is in the next backup, and not missing in it.
    log.mark(9)
    after = copy(store, log, log.end, made)
    assert after.markers == ()
    assert stored(store, after) == log.batches


def test_a_transaction_without_an_end_is_no_backup(store: DirectoryStore):
    log = Log()
    log.write(1, producer=7)
    with pytest.raises(ClientError, match="the end of a transaction is missing"):
        copy(store, log, log.end)


def test_fillers_are_cut_at_the_ends_of_backups(store: DirectoryStore):
    log = Log()
    log.write()
    log.add(empty_batch(Offset(1), Offset(9), Epoch(0), TIME))
    log.write()
    first = copy(store, log, 5)
    assert first.segments[-1].end == 5
    second = copy(store, log, log.end, first)
    # No log is known again by a filler: it is copied whole.
    offsets = [read_header(batch).base_offset for batch in stored(store, second)]
    assert offsets == [0, 1, 9]


def test_a_log_that_begins_inside_a_batch_is_copied_from_its_beginning(store: DirectoryStore):
    log = Log()
    for _ in range(3):
        log.write(4)
    log.start = 6
    made = copy(store, log, log.end, start=6)
    assert (made.start, made.segments[0].start) == (6, 4)
    assert stored(store, made) == log.batches[1:]


def test_records_deleted_meanwhile_and_lost_offsets_are_not_a_gap():
    log = Log()
    log.write(4)
    log.write(4)
    log.start = 4
    with pytest.raises(StartMovedError) as moved:
        list(stored_batches(log, "t", 0, 2, 8))
    assert moved.value.start == 4
    log.batches[-1] = log.batches[-1][:-1]
    with pytest.raises(ClientError, match="returns no records from offset 4"):
        list(stored_batches(log, "t", 0, 4, 8))
    log.start = 0
    with pytest.raises(ClientError, match="lost offsets"):
        list(stored_batches(log, "t", 0, 9, 12))
