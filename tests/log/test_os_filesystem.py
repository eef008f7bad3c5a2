"""The file port: one contract for the operating system's files and the simulated ones."""

import errno
import gc
import os
import stat
from pathlib import Path

import pytest

from moldau.log.os_filesystem import OsFiles
from moldau.model.slices import FileSlice
from sim.simdisk import SimDisk


@pytest.fixture(params=["os", "sim"])
def files(request, tmp_path):
    return OsFiles(tmp_path) if request.param == "os" else SimDisk()


@pytest.fixture
def os_files(tmp_path):
    return OsFiles(tmp_path)


def test_bytes_written_at_a_position_are_read_there(files):
    file = files.open("a", create=True)
    assert file.pwrite(b"hello", 0) == 5
    assert file.pwrite(memoryview(b"-world-")[1:6], 8) == 5
    assert file.pwrite(bytearray(b"J"), 0) == 1
    assert file.size() == 13
    assert file.pread(100, 0) == b"Jello\x00\x00\x00world"
    assert file.pread(3, 8) == b"wor"
    assert file.pread(10, 13) == b""
    assert file.pread(10, 500) == b""
    assert files.read("a") == b"Jello\x00\x00\x00world"


def test_many_buffers_are_written_as_one(files):
    file = files.open("a", create=True)
    assert file.pwrite([b"ab", bytearray(b"cd"), memoryview(b"ef")], 1) == 6
    assert file.pread(10, 0) == b"\x00abcdef"


def test_more_buffers_than_the_system_takes_are_written_in_part_at_least(files):
    file = files.open("a", create=True)
    buffers = [b"%04d" % i for i in range(3000)]
    data = b"".join(buffers)
    written = 0
    while written < len(data):
        count = file.pwrite(buffers[written // 4 :], written)
        assert count > 0
        written += count
    assert file.pread(len(data), 0) == data


def test_truncation_cuts_and_extends_with_zeros(files):
    file = files.open("a", create=True)
    file.pwrite(b"abcdef", 0)
    file.truncate(2)
    assert (file.size(), file.pread(9, 0)) == (2, b"ab")
    file.truncate(4)
    assert (file.size(), file.pread(9, 0)) == (4, b"ab\x00\x00")
    file.flush()


def test_a_file_is_made_only_when_asked(files):
    with pytest.raises(FileNotFoundError):
        files.open("a")
    files.open("a", create=True).pwrite(b"x", 0)
    assert files.open("a", create=True).pread(9, 0) == b"x"
    assert files.open("a").size() == 1


def test_a_file_needs_its_directory(files):
    with pytest.raises(FileNotFoundError):
        files.open("dir/a", create=True)
    files.makedirs("dir")
    files.open("dir/a", create=True)
    assert files.listdir("dir") == ["a"]


def test_a_file_opened_for_reading_is_not_written(files):
    files.replace("a", b"kept")
    file = files.open("a", writable=False)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError):
        file.truncate(0)
    assert file.pread(9, 0) == b"kept"


def test_a_closed_file_is_not_used(files):
    file = files.open("a", create=True)
    file.close()
    file.close()
    for use in (
        lambda: file.pwrite(b"x", 0),
        lambda: file.pread(1, 0),
        lambda: file.truncate(0),
        file.flush,
        file.size,
    ):
        with pytest.raises(ValueError):
            use()


def test_replacing_leaves_the_new_content_and_no_other_name(files):
    files.makedirs("dir")
    files.replace("dir/a", b"one")
    files.replace("dir/a", b"second, longer")
    files.replace("dir/a", b"")
    files.replace("dir/a", b"last")
    assert files.read("dir/a") == b"last"
    assert files.listdir("dir") == ["a"]


def test_replacing_ignores_the_leftovers_of_a_crash(files):
    files.open("a.tmp", create=True).pwrite(b"left over and longer than the new content", 0)
    files.replace("a", b"new")
    assert files.read("a") == b"new"
    assert files.listdir("") == ["a"]


def test_names_are_listed_in_order(files):
    files.makedirs("dir/sub")
    for name in ("b", "a", "c"):
        files.open(f"dir/{name}", create=True)
    assert files.listdir("dir") == ["a", "b", "c", "sub"]
    assert files.listdir("") == ["dir"]
    assert files.listdir("nowhere") == []
    assert files.exists("dir/a")
    assert files.exists("dir/sub")
    assert not files.exists("dir/d")
    files.sync_dir("dir")


def test_directories_are_made_with_those_above(files):
    files.makedirs("a/b/c")
    files.makedirs("a/b/c")
    files.makedirs("a/b/d")
    assert files.listdir("a/b") == ["c", "d"]


def test_a_file_in_the_way_of_a_directory_is_an_error(files):
    files.replace("a", b"")
    with pytest.raises(OSError):
        files.makedirs("a")
    with pytest.raises(OSError):
        files.makedirs("a/b")


def test_renaming_moves_files_and_directories(files):
    files.makedirs("x/deep")
    files.makedirs("y")
    files.replace("x/deep/a", b"moved")
    files.replace("y/a", b"old")
    files.rename("x/deep/a", "y/a")
    assert files.read("y/a") == b"moved"
    files.rename("y", "z")
    assert files.listdir("") == ["x", "z"]
    assert files.read("z/a") == b"moved"
    with pytest.raises(FileNotFoundError):
        files.rename("nowhere", "elsewhere")


def test_a_directory_with_content_is_not_replaced(files):
    files.makedirs("x")
    files.makedirs("y")
    files.replace("y/a", b"")
    with pytest.raises(OSError):
        files.rename("x", "y")
    assert files.listdir("y") == ["a"]


def test_a_removed_file_stays_readable_while_it_is_held(files):
    files.replace("a", b"still here")
    piece = FileSlice(files.open("a"), 6, 4)
    files.remove("a")
    assert not files.exists("a")
    assert piece.file.pread(piece.size, piece.position) == b"here"
    with pytest.raises(FileNotFoundError):
        files.remove("a")


def test_a_directory_is_removed_only_if_it_is_empty(files):
    files.makedirs("a/b")
    files.remove_dir("a")
    assert files.listdir("a") == ["b"]
    files.remove_dir("a/b")
    assert files.listdir("a") == []
    files.remove_dir("a/b")


def test_trees_are_removed_whole(files):
    files.makedirs("x/y/z")
    files.replace("x/y/a", b"")
    files.replace("x/b", b"")
    files.replace("keep", b"")
    files.remove_tree("x")
    files.remove_tree("x")
    assert files.listdir("") == ["keep"]


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/passwd", "a/..", "..", "a\0b"])
def test_paths_that_leave_the_root_are_refused(files, path):
    files.makedirs("a")
    for use in (
        lambda: files.open(path, create=True),
        lambda: files.read(path),
        lambda: files.replace(path, b""),
        lambda: files.listdir(path),
        lambda: files.exists(path),
        lambda: files.makedirs(path),
        lambda: files.rename("a", path),
        lambda: files.rename(path, "b"),
        lambda: files.remove(path),
        lambda: files.remove_tree(path),
        lambda: files.sync_dir(path),
    ):
        with pytest.raises(PermissionError):
            use()


@pytest.mark.parametrize("path", ["", "."])
def test_the_root_itself_is_not_removed(files, path):
    with pytest.raises(PermissionError):
        files.remove_tree(path)


def test_free_bytes_are_counted(files):
    assert 0 < files.free_bytes() <= files.total_bytes()


def test_the_descriptor_closes_with_the_last_reference(os_files):
    os_files.replace("a", b"abc")
    file = os_files.open("a")
    descriptor = file.fileno()
    piece = FileSlice(file, 0, 3)
    del file
    gc.collect()
    assert os.pread(descriptor, 3, 0) == b"abc"
    del piece
    with pytest.raises(OSError) as caught:
        os.fstat(descriptor)
    assert caught.value.errno == errno.EBADF


def test_closing_twice_does_not_close_a_descriptor_of_someone_else(os_files):
    file = os_files.open("a", create=True)
    number = file.fileno()
    file.close()
    other = os.open(os.devnull, os.O_RDONLY)
    assert other == number
    file.close()
    del file
    os.fstat(other)
    os.close(other)


def test_a_root_that_is_missing_is_made(tmp_path):
    files = OsFiles(tmp_path / "data" / "broker-1")
    files.makedirs("")
    assert (tmp_path / "data" / "broker-1").is_dir()
    files.replace("a", b"x")


def test_data_is_not_for_other_users(os_files, tmp_path):
    os_files.makedirs("dir")
    os_files.replace("dir/a", b"")
    assert stat.S_IMODE((tmp_path / "dir" / "a").stat().st_mode) & 0o007 == 0
    assert stat.S_IMODE((tmp_path / "dir").stat().st_mode) & 0o007 == 0


@pytest.fixture
def calls(monkeypatch):
    """What reaches the disk, in order, by the name of what it concerns."""
    seen = []

    def record(name, describe):
        real = getattr(os, name)

        def wrapper(*args):
            seen.append(f"{name} {describe(*args)}")
            return real(*args)

        monkeypatch.setattr(os, name, wrapper)

    def name_of(descriptor):
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    record("fsync", name_of)
    record("fdatasync", name_of)
    record("pwrite", lambda descriptor, *_: name_of(descriptor))
    record("mkdir", lambda path, *_: os.path.basename(path))
    for name in ("replace", "rename"):
        record(name, lambda a, b: f"{os.path.basename(a)} {os.path.basename(b)}")
    return seen


def test_replacing_syncs_content_then_renames_then_syncs_the_directory(os_files, calls):
    os_files.makedirs("dir")
    calls.clear()
    os_files.replace("dir/a", b"x")
    assert calls == ["pwrite a.tmp", "fsync a.tmp", "replace a.tmp a", "fsync dir"]


def test_new_directories_are_synced_one_by_one(os_files, tmp_path, calls):
    os_files.makedirs("a/b")
    assert calls == ["mkdir a", f"fsync {tmp_path.name}", "mkdir b", "fsync a"]


def test_renaming_syncs_both_directories(os_files, calls):
    os_files.makedirs("x")
    os_files.makedirs("y")
    os_files.replace("x/a", b"")
    calls.clear()
    os_files.rename("x/a", "y/b")
    assert calls == ["rename a b", "fsync y", "fsync x"]


def test_flushing_and_syncing_reach_the_disk(os_files, calls):
    os_files.makedirs("dir")
    file = os_files.open("dir/a", create=True)
    calls.clear()
    file.flush()
    os_files.sync_dir("dir")
    assert calls == ["fdatasync a", "fsync dir"]


def test_a_replacement_that_fails_leaves_the_old_content(os_files, monkeypatch):
    os_files.replace("a", b"old")

    def fail(_):
        raise OSError(errno.EIO, "no disk")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        os_files.replace("a", b"new")
    assert os_files.read("a") == b"old"
    assert os_files.listdir("") == ["a"]


def test_reads_continue_where_the_system_stops_short(os_files, monkeypatch):
    os_files.replace("a", bytes(range(100)))
    file = os_files.open("a")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 7), at))
    assert file.pread(60, 3) == bytes(range(3, 63))
    assert file.pread(60, 90) == bytes(range(90, 100))


@pytest.mark.parametrize(
    ("code", "is_cached"), [(None, True), (errno.EAGAIN, False), (errno.EOPNOTSUPP, True)]
)
def test_a_file_says_whether_a_read_would_wait_for_the_disk(os_files, monkeypatch, code, is_cached):
    file = os_files.open("a", create=True)
    file.pwrite(bytes(300_000), 0)
    asked = []

    def preadv(descriptor, buffers, position, flags):
        asked.append(position)
        if code is not None and position > 200_000:
            raise OSError(code, "")
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.is_cached(250_000, 10_000) is is_cached
    assert (asked[0], asked[-1] > 200_000) == (10_000, True)
    file.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_root_writes_private_files_for_the_owner_of_their_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 5678)
    files = OsFiles(tmp_path)
    files.replace("secret", b"x", is_private=True)
    found = os.stat(tmp_path / "secret")
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 5678, 0o600)
