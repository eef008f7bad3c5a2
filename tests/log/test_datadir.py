"""The data directory: one broker at a time, an identity for good, and names that stay inside."""

import contextlib
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.log.datadir import (
    DirectoryLock,
    Identity,
    delete_partition,
    list_partitions,
    move_to_strays,
    partition_path,
    purge_deleted,
    read_identity,
    write_identity,
)
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import ConfigError, CorruptionError, StorageError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.testing.waiting import wait_seconds_max
from sim.simdisk import SimDisk

pytestmark = pytest.mark.system

FRESH = Identity(broker_id=BrokerId(1), cluster_id="c", directory_id="d")
TOPIC_ID = TopicId(bytes(range(16)))
ZERO = PartitionIndex(0)


def test_a_second_process_is_kept_out_with_the_name_of_the_holder(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    code = (
        "import sys; from pathlib import Path; from moldau.log.datadir import DirectoryLock\n"
        "DirectoryLock(Path(sys.argv[1])).acquire()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=wait_seconds_max())
    assert refused.returncode != 0
    assert f"in use by another broker (pid {os.getpid()})" in refused.stderr
    lock.release()
    assert subprocess.run(command, capture_output=True, timeout=wait_seconds_max()).returncode == 0


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_place_of_the_directory_is_named_as_the_reason(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"/{path}: .* is not a directory; choose"):
        DirectoryLock(tmp_path / path).acquire()


def test_a_directory_that_cannot_be_created_is_an_error_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match=r"/proc/x: No such file") as refused:
        DirectoryLock(Path("/proc/x")).acquire()
    assert refused.value.hint.startswith("check its permissions")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, r"{0} belongs to user {1}, .* runs as user 10001: chown -R 10001:\d+ {0} "),
        (errno.EROFS, "mount a volume there that can be written"),
    ],
)
def test_a_volume_that_cannot_be_written_is_an_error_with_the_remedy(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    owner = tmp_path.stat().st_uid
    # The tests may run as a user that may write everywhere.
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    with pytest.raises(ConfigError) as refused:
        DirectoryLock(tmp_path / "data").acquire()
    monkeypatch.undo()
    assert os.strerror(number) in str(refused.value)
    assert re.match(hint.format(tmp_path, owner), refused.value.hint), refused.value.hint


IDENTITIES = [
    FRESH,
    Identity(broker_id=None, cluster_id=None, directory_id="d"),
    Identity(
        broker_id=BrokerId(0),
        cluster_id="c",
        directory_id="d",
        metadata_voters=(BrokerId(0), BrokerId(3)),
    ),
    Identity(broker_id=BrokerId(1), cluster_id="c", directory_id="d", is_bootstrapping=True),
]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_an_identity_is_read_as_it_was_written(tmp_path: Path, identity: Identity) -> None:
    files = OsFiles(tmp_path)
    assert read_identity(files) is None
    write_identity(files, identity)
    assert read_identity(files) == identity


def test_a_new_directory_and_its_files_are_for_the_broker_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "data"
    lock = DirectoryLock(root)
    lock.acquire()
    files = OsFiles(root)
    files.makedirs("topics/orders")
    files.open("topics/orders/segment", create=True).close()
    write_identity(files, Identity(broker_id=None, cluster_id=None, directory_id="d"))
    lock.release()
    for path in (root, root / "topics", root / "topics" / "orders"):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in root.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o600, path
    assert "other users" not in caplog.text
    # One that exists keeps its mode, and the log says what to do.
    root.chmod(0o755)
    lock = DirectoryLock(root)
    lock.acquire()
    lock.release()
    assert f"chmod 700 {root}" in caplog.text


def test_an_identity_is_replaced_as_a_whole(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    for identity in IDENTITIES:
        write_identity(files, identity)
        assert read_identity(files) == identity
    assert [name for name in files.listdir("") if "broker" in name] == ["broker.json"]


def test_only_a_broker_that_was_alone_at_first_has_bootstrapped_a_cluster() -> None:
    assert not any(identity.is_bootstrap_broker for identity in IDENTITIES)
    founder = Identity(
        broker_id=BrokerId(4), cluster_id="c", directory_id="d", metadata_voters=(BrokerId(4),)
    )
    assert founder.is_bootstrap_broker
    # The only voter is another one.
    joined = Identity(
        broker_id=BrokerId(5), cluster_id="c", directory_id="d", metadata_voters=(BrokerId(4),)
    )
    assert not joined.is_bootstrap_broker


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"broker_id": "x"}'])
def test_a_damaged_identity_is_corruption_and_stays(tmp_path: Path, content: bytes) -> None:
    files = OsFiles(tmp_path)
    files.replace("broker.json", content)
    with pytest.raises(CorruptionError, match=r"broker\.json"):
        read_identity(files)
    assert files.read("broker.json") == content


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_flipped_bit_anywhere_in_the_identity_is_never_another_identity(
    tmp_path: Path, identity: Identity
) -> None:
    files = OsFiles(tmp_path)
    write_identity(files, identity)
    good = files.read("broker.json")
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            (tmp_path / "broker.json").write_bytes(bad)
            with contextlib.suppress(CorruptionError):
                assert read_identity(files) == identity


@pytest.mark.parametrize("folder", [partition_path("t", TOPIC_ID, ZERO), "metadata/x"])
def test_logs_without_an_identity_are_not_adopted(tmp_path: Path, folder: str) -> None:
    files = OsFiles(tmp_path)
    files.makedirs(folder)
    with pytest.raises(CorruptionError, match="Restore the file"):
        read_identity(files)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "x" * 250, "a\0b", "ä", "a b"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(StorageError):
        partition_path(name, TOPIC_ID, ZERO)


def test_a_deleted_partition_leaves_no_folder_and_others_stay(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    for index in (0, 1):
        files.makedirs(partition_path("t", TOPIC_ID, PartitionIndex(index)))
    delete_partition(files, "t", TOPIC_ID, ZERO)
    assert files.listdir("topics/t/" + TOPIC_ID.hex()) == ["1"]
    delete_partition(files, "t", TOPIC_ID, PartitionIndex(1))
    assert files.listdir("topics") == []
    assert files.listdir("deleted") == []


def test_a_partition_is_deleted_even_if_there_is_no_room_to_move_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)
    files.makedirs(partition_path("t", TOPIC_ID, ZERO))

    def no_room(self: OsFiles, source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OsFiles, "rename", no_room)
    delete_partition(files, "t", TOPIC_ID, ZERO)
    assert files.listdir("topics") == []


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    files.makedirs("deleted/abc-0")
    purge_deleted(files)
    assert files.listdir("deleted") == []


@pytest.mark.safety
def test_every_partition_with_a_folder_is_found_and_nothing_else(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    with_logs = [("a", 0), ("a", 12), ("b", 3)]
    paths = [partition_path(name, TOPIC_ID, PartitionIndex(index)) for name, index in with_logs]
    for path in [*paths, "topics/a/not-an-id/0", f"topics/a/{TOPIC_ID.hex()}/lost+found"]:
        files.makedirs(path)
    files.replace("topics/note.txt", b"somebody was here")
    assert sorted(list_partitions(files)) == [(name, TOPIC_ID, index) for name, index in with_logs]


def test_no_stray_takes_the_place_of_an_earlier_one() -> None:
    disk = SimDisk()
    for number in range(3):
        path = partition_path("t", TOPIC_ID, ZERO)
        disk.makedirs(path)
        disk.replace(f"{path}/note", b"%d" % number)
        move_to_strays(disk, "t", TOPIC_ID, ZERO)
    found = [disk.read(f"strays/{name}/note") for name in disk.listdir("strays")]
    assert found == [b"0", b"1", b"2"]
    assert disk.listdir("topics") == []
