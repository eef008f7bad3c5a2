"""The vote journal keeps every acknowledged vote through crashes, and never guesses one."""

import random
import struct

import pytest
from crc32c import crc32c

from moldau.log.filesystem import Files
from moldau.log.vote_journal import NO_VOTE, Vote, VoteJournal
from moldau.model.errors import CorruptionError, DiskFullError, StorageError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch
from sim.simdisk import SimCrash, SimDisk

PATH = "votes"


def vote(epoch: int, broker: int = 1) -> Vote:
    return Epoch(epoch), BrokerId(broker)


def test_a_group_that_never_voted_has_no_epoch() -> None:
    assert VoteJournal.open(SimDisk(), PATH).get("g") == (NO_EPOCH, NO_VOTE)


def test_votes_survive_a_power_cut() -> None:
    for seed in range(50):
        disk = SimDisk()
        journal = VoteJournal.open(disk, PATH)
        for epoch in range(5):
            journal.record({"a": vote(epoch), "b": vote(epoch * 2, 2)})
        again = VoteJournal.open(disk.crash(random.Random(seed)), PATH)
        assert (again.get("a"), again.get("b")) == (vote(4), vote(8, 2)), f"seed={seed}"


def test_a_crash_at_any_step_keeps_what_was_acknowledged() -> None:
    steps = 0
    while True:
        disk = SimDisk()
        disk.crash_at(steps)
        acknowledged = -1
        try:
            journal = VoteJournal.open(disk, PATH)
            for epoch in range(4):
                journal.record({"g": vote(epoch)})
                acknowledged = epoch
        except SimCrash:
            pass
        else:
            break
        for seed in range(10):
            found = VoteJournal.open(disk.crash(random.Random(seed)), PATH).get("g")[0]
            assert acknowledged <= found <= acknowledged + 1, f"step={steps} seed={seed}"
        steps += 1
    assert steps > 8


def test_a_rewrite_keeps_every_vote_and_bounds_the_file() -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    for epoch in range(300):
        journal.record({f"group-{n}": vote(epoch, n) for n in range(100)})
    assert len(disk.read(PATH)) < 1_000_000
    again = VoteJournal.open(disk, PATH)
    assert [again.get(f"group-{n}") for n in range(100)] == [vote(299, n) for n in range(100)]


def test_any_flipped_bit_is_survived_or_refused_and_never_changes_a_vote() -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    for epoch in range(3):
        journal.record({"g": vote(epoch)})
    size = len(disk.read(PATH))
    for byte in range(size):
        for bit in (0, 7):
            disk.flip_bit(PATH, byte, bit)
            copy = SimDisk()
            copy.replace(PATH, disk.read(PATH))
            disk.flip_bit(PATH, byte, bit)
            assert VoteJournal.open(copy, PATH).get("g") == vote(2), f"byte={byte} bit={bit}"


def test_an_entry_missing_in_the_middle_is_corruption() -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    for epoch in range(3):
        journal.record({"g": vote(epoch)})
    data = bytearray(disk.read(PATH))
    third = len(data) // 4
    data[third : 2 * third] = bytes(third)
    damaged = SimDisk()
    damaged.replace(PATH, bytes(data))
    with pytest.raises(CorruptionError):
        VoteJournal.open(damaged, PATH)


def test_a_file_of_garbage_is_corruption() -> None:
    disk = SimDisk()
    disk.replace(PATH, b"garbage" * 100)
    with pytest.raises(CorruptionError, match="votes"):
        VoteJournal.open(disk, PATH)


def test_a_failed_flush_is_reported() -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    disk.fail_next_flush()
    with pytest.raises(StorageError):
        journal.record({"g": vote(1)})


def test_nothing_is_stored_after_a_failed_flush_and_the_next_start_finds_all_before_it() -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    journal.record({"g": vote(1)})
    disk.fail_next_flush()
    for _ in range(2):
        with pytest.raises(StorageError):
            journal.record({"g": vote(2)})
    assert VoteJournal.open(disk.survive(), PATH).get("g") in (vote(1), vote(2))


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_a_vote_that_found_no_room_is_forgotten_and_the_next_one_is_kept(room: int) -> None:
    disk = SimDisk()
    journal = VoteJournal.open(disk, PATH)
    journal.record({"g": vote(1)})
    disk.capacity_bytes = disk.total_bytes() - disk.free_bytes() + room
    with pytest.raises(DiskFullError):
        journal.record({"g": vote(2), "a group with a long name" * 10: vote(1)})
    assert journal.get("g") == vote(1)
    disk.capacity_bytes = 1 << 30
    journal.record({"g": vote(3)})
    again = VoteJournal.open(disk, PATH)
    assert again.get("g") == vote(3)
    assert again.get("a group with a long name" * 10) == (NO_EPOCH, NO_VOTE)


def test_forgotten_groups_do_not_come_back_with_the_next_start() -> None:
    files: Files = SimDisk()
    journal = VoteJournal.open(files, PATH)
    journal.record({"old": vote(1), "new": vote(2)})
    journal.forget(frozenset({"old", "unknown"}))
    assert journal.get("old") == (NO_EPOCH, NO_VOTE)
    journal.close()
    again = VoteJournal.open(files, PATH)
    assert (again.get("old"), again.get("new")) == ((NO_EPOCH, NO_VOTE), vote(2))
    assert b"old" not in files.read(PATH)


def entry(number: int, payload: bytes) -> bytes:
    """With a checksum that fits, whatever it contains."""
    crc = crc32c(struct.pack(">QI", number, len(payload)) + payload)
    return struct.pack(">4sQII", b"MoVt", number, len(payload), crc) + payload


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([(0, b"\x80"), (2**64 - 1, b"\x80")], "entry 1 of"),
        ([(2**64 - 1, b"\x80")], "is corrupt"),
        ([(0, b"\x81\xa1\xff\x92\x00\x00")], "is corrupt"),
        ([(0, b"junk")], "is corrupt"),
    ],
)
def test_an_entry_that_nobody_wrote_is_corrupt_and_found_at_once(
    entries: list[tuple[int, bytes]], said: str
) -> None:
    disk = SimDisk()
    disk.replace(PATH, b"".join(entry(*each) for each in entries))
    with pytest.raises(CorruptionError, match=said):
        VoteJournal.open(disk, PATH)
