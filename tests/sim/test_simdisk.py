"""The simulated disk: what must survive survives, what may be lost is sometimes lost."""

import errno
import random
from typing import Any

import pytest
from effort import seeds
from fakes import Fake

from sim.simdisk import SimCrash, SimDisk
from sim.torn_writes import CrashRates, Truncation, Write, surviving_bytes

SEEDS = seeds(300)


def outcomes(disk: SimDisk, look) -> list[Any]:
    """What `look` finds after each of many power cuts at this moment."""
    return [look(disk.crash(random.Random(seed))) for seed in SEEDS]


def disk_with(path: str, data: bytes) -> SimDisk:
    disk = SimDisk()
    disk.replace(path, data)
    return disk


def test_flushed_bytes_under_a_synced_name_always_survive():
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.sync_dir("")
    file.pwrite(b"one", 0)
    file.pwrite(b"two", 3)
    file.flush()
    assert set(outcomes(disk, lambda found: found.read("a"))) == {b"onetwo"}


def test_a_synced_name_does_not_save_bytes_nor_a_flush_a_name():
    disk = SimDisk()
    disk.open("name", create=True).pwrite(b"x", 0)
    disk.sync_dir("")
    file = disk.open("bytes", create=True)
    file.pwrite(b"x", 0)
    file.flush()
    found = outcomes(disk, lambda found: (found.read("name"), found.exists("bytes")))
    assert {data for data, _ in found} >= {b"", b"x"}
    assert {exists for _, exists in found} == {True, False}
    # If the name made it, so did the flushed bytes.
    assert set(
        outcomes(disk, lambda found: found.exists("bytes") and found.read("bytes")),
    ) == {False, b"x"}


def test_unflushed_writes_survive_whole_in_part_or_not_at_all():
    disk = disk_with("a", b"base")
    disk.open("a").pwrite(b"0123456789", 4)
    found = set(outcomes(disk, lambda found: found.read("a")))
    assert {b"base", b"base0123456789", b"base" + bytes(10)} <= found
    assert any(b"base" < data < b"base0123456789" and len(data) < 14 for data in found)
    assert all(data.startswith(b"base") for data in found)


def test_a_later_write_may_survive_an_earlier_one():
    disk = disk_with("a", b"........")
    file = disk.open("a")
    file.pwrite(b"A", 0)
    file.pwrite(b"B", 4)
    found = set(outcomes(disk, lambda found: found.read("a")))
    assert found == {b"........", b"A.......", b"....B...", b"A...B..."}


def test_a_torn_write_may_lose_sectors_in_the_middle():
    disk = disk_with("a", b".")
    disk.open("a").pwrite(b"x" * 4096, 0)
    found = outcomes(disk, lambda found: found.read("a"))
    torn = [data for data in found if b"x" in data and b"\x00" in data.rstrip(b"\x00")]
    assert torn
    for data in torn:
        lost = {at // 512 for at, byte in enumerate(data.rstrip(b"\x00")) if byte != ord("x")}
        for sector in lost:
            assert b"x" not in data[sector * 512 : (sector + 1) * 512]


def test_an_overwrite_in_place_shows_old_or_new_bytes_only():
    disk = disk_with("a", b"o" * 2000)
    disk.open("a").pwrite(b"n" * 1000, 500)
    for data in outcomes(disk, lambda found: found.read("a")):
        assert len(data) == 2000
        assert set(data) <= set(b"on")
        assert data[:500] == b"o" * 500
        assert data[1500:] == b"o" * 500


def test_unflushed_truncations_may_come_back():
    disk = disk_with("a", b"old-valid-bytes")
    file = disk.open("a")
    file.truncate(4)
    assert set(outcomes(disk, lambda found: found.read("a"))) == {b"old-", b"old-valid-bytes"}
    file = disk_with("b", b"old-valid-bytes").open("b")
    file.truncate(4)
    file.pwrite(b"NEW", 4)
    found = set(outcomes(file._disk, lambda found: found.read("b")))
    assert {b"old-NEW", b"old-", b"old-valid-bytes", b"old-NEWid-bytes"} <= found


def test_flushed_truncations_stay():
    disk = disk_with("a", b"old-valid-bytes")
    file = disk.open("a")
    file.truncate(4)
    file.flush()
    assert set(outcomes(disk, lambda found: found.read("a"))) == {b"old-"}


def test_removed_names_may_come_back_until_the_directory_is_synced():
    disk = disk_with("a", b"x")
    disk.remove("a")
    assert set(outcomes(disk, lambda found: found.exists("a"))) == {True, False}
    disk = disk_with("a", b"x")
    disk.remove("a")
    disk.sync_dir("")
    assert set(outcomes(disk, lambda found: found.exists("a"))) == {False}


def test_a_tree_may_be_removed_in_part():
    disk = SimDisk()
    disk.makedirs("dir")
    for name in "abc":
        disk.replace(f"dir/{name}", b"x")
    disk.remove_tree("dir")
    found = set(outcomes(disk, lambda found: tuple(found.listdir("dir"))))
    assert {(), ("a", "b", "c")} < found


def test_a_synced_subdirectory_says_nothing_about_another():
    disk = SimDisk()
    disk.makedirs("x")
    disk.makedirs("y")
    disk.open("x/a", create=True)
    disk.open("y/a", create=True)
    disk.sync_dir("x")
    assert set(outcomes(disk, lambda found: found.exists("x/a"))) == {True}
    assert set(outcomes(disk, lambda found: found.exists("y/a"))) == {True, False}


def test_what_the_port_calls_durable_is_durable_when_it_returns():
    disk = SimDisk()
    disk.makedirs("a/b")
    disk.replace("a/b/f", b"content")
    disk.rename("a/b", "c")
    assert set(outcomes(disk, lambda found: (found.read("c/f"), found.exists("a/b")))) == {
        (b"content", False)
    }


def test_replacing_is_atomic_wherever_the_power_goes():
    total = steps_of(lambda disk: disk.replace("a", b"second"))
    seen = set()
    for steps in range(total):
        disk = disk_with("a", b"first")
        disk.crash_at(steps)
        with pytest.raises(SimCrash):
            disk.replace("a", b"second")
        seen |= set(outcomes(disk, lambda found: found.read("a")))
    assert seen == {b"first", b"second"}


def test_a_hand_made_replacement_without_a_flush_is_caught():
    disk = disk_with("a", b"first")
    disk.open("a.tmp", create=True).pwrite(b"second", 0)
    disk.rename("a.tmp", "a")
    assert set(outcomes(disk, lambda found: found.read("a"))) - {b"first", b"second"}


def test_renaming_across_directories_never_shows_both_or_none():
    for steps in range(2):
        disk = SimDisk()
        disk.makedirs("x")
        disk.makedirs("y")
        disk.replace("x/a", b"1")
        disk.crash_at(steps)
        with pytest.raises(SimCrash):
            disk.rename("x/a", "y/a")
        found = set(outcomes(disk, lambda found: (found.exists("x/a"), found.exists("y/a"))))
        assert found == ({(True, False)} if steps == 0 else {(True, False), (False, True)})


def steps_of(work) -> int:
    disk = disk_with("a", b"first")
    before = disk.steps
    work(disk)
    return disk.steps - before


def test_the_hook_is_called_before_every_change():
    disk = SimDisk()
    labels: list[str] = []
    disk.on_step = labels.append
    disk.makedirs("d")
    file = disk.open("d/a", create=True)
    file.pwrite(b"abc", 7)
    file.truncate(8)
    file.flush()
    disk.sync_dir("d")
    disk.rename("d/a", "d/b")
    disk.remove("d/b")
    file.pread(3, 0)
    disk.listdir("d")
    assert labels == [
        "mkdir d",
        "sync_dir ",
        "create d/a",
        "write d/a 7+3",
        "truncate d/a 8",
        "flush d/a",
        "sync_dir d",
        "rename d/a d/b",
        "sync_dir d/b",
        "remove d/b",
    ]
    assert disk.steps == len(labels)


def test_a_hook_can_cut_the_power_before_a_change():
    disk = disk_with("a", b"kept")
    file = disk.open("a")

    def cut(label):
        if label.startswith("write"):
            raise SimCrash(label)

    disk.on_step = cut
    with pytest.raises(SimCrash):
        file.pwrite(b"lost", 0)
    assert set(outcomes(disk, lambda found: found.read("a"))) == {b"kept"}


def test_a_crash_comes_after_the_number_of_changes_asked_for():
    disk = SimDisk()
    disk.crash_at(2)
    file = disk.open("a", create=True)
    file.pwrite(b"1", 0)
    with pytest.raises(SimCrash):
        file.flush()
    assert disk.durable_bytes("a") is None


def test_no_handler_for_errors_swallows_a_crash():
    assert not issubclass(SimCrash, Exception)


def test_after_a_crash_the_disk_is_off_but_files_close():
    disk = disk_with("a", b"1")
    file = disk.open("a")
    disk.crash_at(0)
    with pytest.raises(SimCrash):
        file.pwrite(b"2", 0)
    for use in (
        lambda: file.pwrite(b"3", 0),
        lambda: file.pread(1, 0),
        file.flush,
        lambda: disk.open("a"),
        lambda: disk.read("a"),
        lambda: disk.replace("a", b"4"),
        lambda: disk.remove("a"),
        lambda: disk.listdir(""),
        disk.free_bytes,
    ):
        with pytest.raises(SimCrash):
            use()
    file.close()
    found = disk.crash(random.Random(1))
    assert found.read("a") == b"1"


def test_the_disk_found_after_a_crash_is_a_disk_of_its_own():
    disk = disk_with("a", b"1")
    found = disk.crash(random.Random(1))
    found.open("a").pwrite(b"2", 0)
    assert disk.durable_bytes("a") == b"1"
    assert found.durable_bytes("a") == b"1"
    found.open("a").flush()
    assert found.crash(random.Random(2)).read("a") == b"2"
    assert disk.crash(random.Random(2)).read("a") == b"1"


def busy_disk() -> SimDisk:
    disk = SimDisk()
    rng = random.Random(7)
    for directory in ("p-0", "p-1"):
        disk.makedirs(directory)
        for name in ("1.log", "2.log"):
            file = disk.open(f"{directory}/{name}", create=True)
            for _ in range(20):
                file.pwrite(rng.randbytes(rng.randint(1, 3000)), rng.randint(0, 5000))
                if rng.random() < 0.1:
                    file.truncate(rng.randint(0, 5000))
                if rng.random() < 0.1:
                    file.flush()
    return disk


def tree(disk: SimDisk) -> dict[str, bytes]:
    return {
        f"{directory}/{name}": disk.read(f"{directory}/{name}")
        for directory in disk.listdir("")
        for name in disk.listdir(directory)
    }


def test_the_same_seed_gives_the_same_disk():
    first, second = busy_disk(), busy_disk()
    trees = []
    for seed in SEEDS[:40]:
        left, right = (tree(disk.crash(random.Random(seed))) for disk in (first, second))
        assert left == right
        trees.append(tuple(sorted(left.items())))
    assert len(set(trees)) > 20


def test_seeds_differ_from_losing_nothing_to_losing_everything():
    rates = [CrashRates.draw(random.Random(seed)) for seed in SEEDS]
    assert {rate.is_ordered for rate in rates} == {True, False}
    assert {rate.survival for rate in rates} >= {0.0, 1.0}
    pending = [Write(i * 10, b"x" * 10) for i in range(5)]
    found = {bytes(surviving_bytes(b"", pending, rate, random.Random(1))) for rate in rates}
    assert {b"", b"x" * 50} <= found


def test_an_ordered_crash_keeps_a_prefix():
    rates = CrashRates(is_ordered=True, survival=0.5, tearing=1.0, sectors=0.0, growing=0.0)
    pending: list[Write | Truncation] = [
        Write(0, b"aaaa"),
        Truncation(2),
        Write(2, b"bb"),
        Write(4, b"cc"),
    ]
    found = {bytes(surviving_bytes(b"", pending, rates, random.Random(seed))) for seed in SEEDS}
    assert found == {b"", b"a", b"aa", b"aaa", b"aaaa", b"aab", b"aabb", b"aabbc", b"aabbcc"}


def test_a_full_disk_writes_short_first_and_fails_after():
    disk = SimDisk(capacity_bytes=10)
    file = disk.open("a", create=True)
    assert disk.free_bytes() == 10
    assert file.pwrite(b"1234567", 0) == 7
    assert file.pwrite(b"89abcdef", 7) == 3
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            file.pwrite(b"x", 10)
        assert caught.value.errno == errno.ENOSPC
    assert file.pread(20, 0) == b"123456789a"
    # What is there already can be overwritten, and what is given back used again.
    assert file.pwrite(b"ZZ", 0) == 2
    file.truncate(4)
    assert disk.free_bytes() == 6
    disk.remove("a")
    assert disk.free_bytes() == 10


def test_more_capacity_heals_a_full_disk():
    disk = SimDisk(capacity_bytes=0)
    with pytest.raises(OSError):
        disk.replace("a", b"x")
    assert disk.listdir("") == []
    disk.capacity_bytes = 1
    disk.replace("a", b"x")
    assert disk.crash(random.Random(0)).free_bytes() == 0


def test_a_failed_flush_loses_what_it_should_have_covered_for_good():
    disk = disk_with("a", b"old")
    file = disk.open("a")
    file.pwrite(b"NEW", 0)
    disk.fail_next_flush("a")
    disk.open("b", create=True).flush()
    with pytest.raises(OSError) as caught:
        file.flush()
    assert caught.value.errno == errno.EIO
    # The retry succeeds, and means nothing.
    file.flush()
    assert file.pread(3, 0) == b"NEW"
    assert set(outcomes(disk, lambda found: found.read("a"))) == {b"old"}


def test_rotten_bits_are_seen_now_and_after_a_crash():
    disk = disk_with("a", b"\x00\x00")
    file = disk.open("a")
    file.pwrite(b"\x00", 2)
    disk.flip_bit("a", 1, 3)
    disk.flip_bit("a", 2, 0)
    assert file.pread(3, 0) == b"\x00\x08\x01"
    file.flush()
    assert disk.crash(random.Random(0)).read("a") == b"\x00\x08\x01"


def test_a_simulated_file_gives_its_bytes_to_a_socket():
    disk = SimDisk()
    disk.replace("a", b"0123456789")

    class Sock(Fake):
        def send(self, data):
            self.taken = data[:3]
            return 3

    sock = Sock()
    assert disk.open("a").send_to(sock, 5, 2) == 3
    assert sock.taken == b"234"


def test_what_a_killed_process_wrote_is_there_for_the_next_one_alone():
    disk = SimDisk()
    disk.makedirs("d")
    file = disk.open("d/a", create=True)
    file.pwrite(b"unflushed", 0)
    found = disk.survive()
    assert found.read("d/a") == b"unflushed"
    assert found.used_bytes == 9
    with pytest.raises(SimCrash):
        file.pwrite(b"x", 0)
    assert found.lose().listdir("d") == []


def test_the_worst_that_a_power_cut_leaves_is_what_was_flushed():
    disk = SimDisk()
    disk.replace("a", b"old")
    file = disk.open("a")
    file.pwrite(b"new!", 0)
    copy = disk.durable_copy()
    assert (copy.read("a"), disk.read("a")) == (b"old", b"new!")
    assert disk.lose().read("a") == b"old"
    with pytest.raises(SimCrash):
        disk.read("a")


def test_faults_that_did_not_come_yet_can_be_taken_back():
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.fail_next_flush()
    disk.crash_at(0)
    disk.forget_faults()
    file.pwrite(b"x", 0)
    flushes = []
    disk.on_flush = lambda: flushes.append(1)
    file.flush()
    assert flushes == [1]


def test_a_flush_covers_what_was_written_before_it_began():
    disk = disk_with("a", b"")
    file = disk.open("a")
    file.pwrite(b"before", 0)
    begun = disk.steps
    file.pwrite(b"after", 6)
    with disk.as_begun(begun):
        file.flush()
    assert disk.durable_bytes("a") == b"before"
    assert disk.is_durable("a", 0, 6)
    assert not disk.is_durable("a", 0, 11)
    file.flush()
    assert disk.is_durable("a", 0, 11)


class TinyLog:
    """Fixed-size entries in one file. Acknowledges what append returned for."""

    entry = b"entry-%03d"
    size = 9

    def __init__(self, disk: SimDisk, *, flushes: bool = True, syncs: bool = True) -> None:
        self.flushes = flushes
        made = not disk.exists("log")
        self.file = disk.open("log", create=True)
        if made and syncs:
            disk.sync_dir("")
        self.count = 0
        while self.file.pread(self.size, self.count * self.size) == self.entry % self.count:
            self.count += 1
        # Cut what is torn, or old bytes might complete a later entry.
        self.file.truncate(self.count * self.size)
        self.file.flush()

    def append(self) -> None:
        self.file.pwrite(self.entry % self.count, self.count * self.size)
        if self.flushes:
            self.file.flush()
        self.count += 1


def lost_entries(**mutation) -> int:
    """Crash a small log everywhere; how many times an acknowledged entry was missing."""
    lost = 0
    for steps in range(12):
        for seed in range(20):
            disk = SimDisk()
            disk.crash_at(steps)
            acked = 0
            try:
                log = TinyLog(disk, **mutation)
                for _ in range(4):
                    log.append()
                    acked = log.count
            except SimCrash:
                pass
            lost += TinyLog(disk.crash(random.Random(seed))).count < acked
    return lost


def test_a_log_that_keeps_its_promise_passes_and_mutants_are_caught():
    assert lost_entries() == 0
    assert lost_entries(flushes=False) > 0
    assert lost_entries(syncs=False) > 0
