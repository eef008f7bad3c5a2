"""The directory of a backup, and its manifests: what is damaged, foreign or full is said so."""

import errno
import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from moldau.client.backup.create import BackupCreator
from moldau.client.backup.manifests import (
    BackupDamagedError,
    Manifest,
    Mark,
    PartitionCopy,
    Segment,
    data_paths,
    load_manifest,
    load_mark,
    make_mark,
    manifest_numbers,
    require_mark,
    save_manifest,
)
from moldau.client.backup.prune import check_selection, prune
from moldau.client.backup.stores import DirectoryStore, open_store
from moldau.client.errors import ClientError, NotFoundError
from moldau.model.backup import ClusterCopy

CLUSTER = ClusterCopy(cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=())
MARK = Mark(format=1, id="chain", cluster_id="c")
FIRST, SECOND, THIRD = (Segment(at, at + 10, 3, at) for at in (0, 10, 20))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    made = DirectoryStore(tmp_path / "backups")
    make_mark(made, MARK)
    return made


def manifest(number: int, *segments: Segment) -> Manifest:
    copy = PartitionCopy(topic="t", topic_id="0f", partition=0, start=0, end=30, segments=segments)
    return Manifest(
        id="chain",
        number=number,
        started_ms=1,
        finished_ms=2,
        cluster=CLUSTER,
        partitions=(copy,),
    )


def test_a_file_is_there_whole_and_for_its_owner_only(store: DirectoryStore):
    store.put("data/a/b", b"content")
    assert store.get("data/a/b") == b"content"
    assert store.names("data/a") == ["b"]
    assert stat.S_IMODE((store.root / "data/a/b").stat().st_mode) == 0o600
    assert stat.S_IMODE((store.root / "data").stat().st_mode) == 0o700
    store.delete("data/a/b")
    assert store.names("data") == []
    with pytest.raises(NotFoundError, match="missing"):
        store.get("data/a/b")


def test_a_full_disk_leaves_nothing_and_says_how_to_continue(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ClientError, match="is full") as failed:
        store.put("data/a", b"content")
    assert "continues" in failed.value.hint
    files = [file.name for file in store.root.rglob("*") if file.is_file()]
    assert files == ["moldau-backup.json"]


def test_leftovers_of_a_cut_short_write_are_removed_and_never_seen(store: DirectoryStore):
    store.put("data/a", b"content")
    (store.root / "data/.tmp-0").write_bytes(b"con")
    assert store.names("data") == ["a"]
    with store.locked():
        assert os.listdir(store.root / "data") == ["a"]
        with pytest.raises(ClientError, match="another command"), store.locked():
            pass


def test_the_mark_names_the_cluster_and_refuses_a_foreign_directory(
    store: DirectoryStore, tmp_path: Path
):
    assert load_mark(store) == MARK
    other = DirectoryStore(tmp_path / "other")
    assert load_mark(other) is None
    with pytest.raises(NotFoundError, match="is not a backup"):
        require_mark(other)
    other.put("letter.txt", b"dear")
    with pytest.raises(ClientError, match=r"not empty and not a backup \(it contains letter.txt"):
        make_mark(other, MARK)


def test_a_place_whose_mark_is_lost_or_damaged_is_known_by_its_manifests(store: DirectoryStore):
    save_manifest(store, manifest(1, FIRST))
    save_manifest(store, manifest(2, FIRST))
    store.put("manifests/000002.json", b"cut")
    store.put("moldau-backup.json", b"{")
    assert require_mark(store) == MARK
    store.delete("moldau-backup.json")
    assert require_mark(store) == MARK
    store.put("manifests/000001.json", b"cut")
    assert load_mark(store) is None
    store.put("moldau-backup.json", b"{")
    with pytest.raises(BackupDamagedError, match=r"moldau-backup.json is damaged"):
        load_mark(store)


def test_a_backup_of_a_newer_version_is_refused(store: DirectoryStore):
    store.put("moldau-backup.json", b'{"format": 2, "id": "i", "cluster_id": "c"}')
    with pytest.raises(ClientError, match="has format 2, this version reads 1"):
        load_mark(store)


def test_a_manifest_comes_back_and_any_changed_byte_is_found(store: DirectoryStore):
    saved = manifest(1, FIRST, SECOND)
    save_manifest(store, saved)
    assert load_manifest(store, 1) == saved
    assert manifest_numbers(store) == [1]
    with pytest.raises(ClientError, match="another command has written backup 1"):
        save_manifest(store, saved)
    (name,) = store.names("manifests")
    whole = store.get(f"manifests/{name}")
    for at in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        store.put(f"manifests/{name}", bytes(damaged))
        with pytest.raises(BackupDamagedError, match="damaged"):
            load_manifest(store, 1)


def test_pruning_keeps_what_the_kept_backups_need(store: DirectoryStore):
    for segment in (FIRST, SECOND, THIRD):
        store.put(segment.path("0f", 0), b"abc")
    save_manifest(store, manifest(1, FIRST))
    save_manifest(store, manifest(2, FIRST, SECOND))
    save_manifest(store, manifest(3, SECOND, THIRD))
    assert prune(store, 2).files == 0
    assert manifest_numbers(store) == [2, 3]
    assert prune(store, 1).files == 1
    assert data_paths(store) == [SECOND.path("0f", 0), THIRD.path("0f", 0)]


def test_a_backup_of_few_topics_never_replaces_one_of_all(store: DirectoryStore):
    check_selection(store, ("orders*",))
    save_manifest(store, manifest(1, FIRST))
    check_selection(store, ())
    with pytest.raises(ClientError, match=r"backups of other topics \(backup 1\)"):
        check_selection(store, ("orders*",))
    save_manifest(store, replace(manifest(2, FIRST), selection=("orders*",)))
    with pytest.raises(ClientError, match=r"backups of other topics \(backup 2\)"):
        check_selection(store, ())
    # A backup is made also when it is not known what the damaged one was of; none is deleted then.
    store.put("manifests/000002.json", b"cut")
    check_selection(store, ())
    with pytest.raises(BackupDamagedError, match=r"000002.json is damaged"):
        prune(store, 1)
    assert manifest_numbers(store) == [1, 2]


def test_pruning_spares_files_of_a_backup_that_is_being_made(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
):
    for segment in (FIRST, SECOND, THIRD):
        store.put(segment.path("0f", 0), b"abc")
    save_manifest(store, manifest(1, FIRST))
    young = SECOND.path("0f", 0)
    monkeypatch.setattr(DirectoryStore, "is_settled", lambda _, path: path != young)
    assert prune(store, 1).files == 1
    assert data_paths(store) == [FIRST.path("0f", 0), young]


def test_a_backup_whose_files_another_command_deleted_is_none(store: DirectoryStore):
    store.put(FIRST.path("0f", 0), b"abc")
    creator = BackupCreator(cast(Any, None), store, new_id=lambda: "")
    whole, broken = manifest(1, FIRST), manifest(2, FIRST, SECOND)
    for made in (whole, broken):
        save_manifest(store, made)
    creator._check_files(whole)
    with pytest.raises(ClientError, match=f"{SECOND.path('0f', 0)} is missing"):
        creator._check_files(broken)
    assert manifest_numbers(store) == [1]


def test_places_that_cannot_be_are_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    for place, why in (
        (str(tmp_path / "file"), "is not a directory"),
        ("ftp://host/x", "neither a directory nor"),
        ("", "neither a directory nor"),
        ("s3://", "names no bucket"),
    ):
        with pytest.raises(ClientError, match=why):
            open_store(place)
