"""The data directory: one broker at a time, an identity for good, and names that stay inside."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.log.datadir import (
    DirectoryLock,
    Identity,
    delete_partition,
    load_identity,
    partition_path,
    purge_deleted,
)
from moldau.log.files import OsFiles
from moldau.model.errors import ConfigError, CorruptionError, StorageError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId

FRESH = Identity(broker_id=BrokerId(1), cluster_id="c", directory_id="d")
TOPIC_ID = TopicId(bytes(range(16)))
ZERO = PartitionIndex(0)


def test_a_second_process_is_kept_out_and_told_who_holds_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    code = (
        "import sys; from pathlib import Path; from moldau.log.datadir import DirectoryLock\n"
        "DirectoryLock(Path(sys.argv[1])).acquire()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert f"in use by another broker (pid {os.getpid()})" in refused.stderr
    lock.release()
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot use .*file"):
        DirectoryLock(tmp_path / "file" / "below").acquire()


def test_the_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    assert load_identity(files, FRESH) == FRESH
    other = Identity(broker_id=BrokerId(1), cluster_id="x", directory_id="y")
    assert load_identity(files, other) == FRESH


def test_another_brokers_directory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    load_identity(files, FRESH)
    second = Identity(broker_id=BrokerId(2), cluster_id="c", directory_id="d")
    with pytest.raises(ConfigError, match="belongs to broker 1, not to 2; start with --id 1"):
        load_identity(files, second)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"broker_id": "x"}'])
def test_a_damaged_identity_is_corruption_and_stays(tmp_path: Path, content: bytes) -> None:
    files = OsFiles(tmp_path)
    files.replace("broker.json", content)
    with pytest.raises(CorruptionError, match=r"broker\.json"):
        load_identity(files, FRESH)
    assert files.read("broker.json") == content


def test_a_flipped_bit_anywhere_in_the_identity_is_never_another_identity(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    load_identity(files, FRESH)
    good = files.read("broker.json")
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            files.replace("broker.json", bytes(bad))
            with contextlib.suppress(CorruptionError):
                assert load_identity(files, FRESH) == FRESH


def test_logs_without_an_identity_are_not_adopted(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    files.makedirs(partition_path("t", TOPIC_ID, ZERO))
    with pytest.raises(CorruptionError, match="restore it"):
        load_identity(files, FRESH)


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
