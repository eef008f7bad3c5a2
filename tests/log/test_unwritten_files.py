"""A tree that is read looks as if it was written to, and stays as it is."""

import pytest

from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.unwritten_files import UnwrittenFiles
from moldau.testing.logs import append, flush, read_bytes
from sim.simdisk import SimDisk


def stored() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("a/b")
    disk.replace("a/one", b"0123456789")
    disk.replace("a/two", b"two")
    return disk


def test_writes_are_read_back_and_not_stored() -> None:
    disk = stored()
    steps = disk.steps
    files = UnwrittenFiles(disk)
    file = files.open("a/one")
    file.pwrite(b"xy", 2)
    file.pwrite([b"E", b"F"], 12)
    assert file.pread(100, 0) == b"01xy456789\0\0EF"
    assert files.open("a/one").pread(3, 1) == b"1xy"
    file.truncate(5)
    file.pwrite(b"!", 7)
    assert files.read("a/one") == b"01xy4\0\0!"
    assert file.size() == 8
    assert disk.read("a/one") == b"0123456789"
    assert disk.steps == steps


def test_names_come_and_go() -> None:
    disk = stored()
    steps = disk.steps
    files = UnwrittenFiles(disk)
    files.replace("a/two", b"2")
    files.replace("a/three", b"3")
    files.remove("a/one")
    files.makedirs("a/c")
    files.open("a/c/new", create=True).pwrite(b"n", 0)
    assert files.listdir("a") == ["b", "c", "three", "two"]
    assert files.read("a/two") == b"2"
    assert files.read("a/c/new") == b"n"
    assert not files.exists("a/one")
    with pytest.raises(FileNotFoundError):
        files.open("a/one")
    with pytest.raises(FileNotFoundError):
        files.remove("a/one")
    files.open("a/one", create=True)
    assert files.read("a/one") == b""
    files.rename("a/two", "a/four")
    assert files.listdir("a") == ["b", "c", "four", "one", "three"]
    files.remove_tree("a/c")
    files.remove_dir("a/b")
    assert files.listdir("a") == ["four", "one", "three"]
    assert disk.listdir("a") == ["b", "one", "two"]
    assert disk.steps == steps


def test_a_torn_log_is_repaired_for_the_one_who_looks() -> None:
    disk = SimDisk()
    log = open_disk_log(disk, "t", LogConfig())
    first = append(log, count=3)
    flush(log)
    second = append(log)
    (name,) = [each for each in disk.listdir("t") if each.endswith(".log")]
    log.discard()
    file = disk.open(f"t/{name}")
    file.pwrite(b"\xff" * 8, disk.read(f"t/{name}").index(second) + len(second) - 8)
    file.flush()
    before = {each: disk.read(f"t/{each}") for each in disk.listdir("t")}
    found = open_disk_log(UnwrittenFiles(disk), "t", LogConfig())
    assert found.end_offset == 3
    assert read_bytes(found, 0) == first
    found.discard()
    assert {each: disk.read(f"t/{each}") for each in disk.listdir("t")} == before
