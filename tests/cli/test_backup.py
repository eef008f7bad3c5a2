"""What `moldau backup create` says, and when it deletes no older backup."""

from pathlib import Path
from typing import Any

import pytest
from fakes import Fake

from moldau.client.backup.manifests import (
    Manifest,
    Mark,
    make_mark,
    manifest_numbers,
    save_manifest,
)
from moldau.client.backup.stores import DirectoryStore
from moldau.model.backup import ClusterCopy

pytestmark = pytest.mark.inprocess


def made(number: int) -> Manifest:
    cluster = ClusterCopy(
        cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=()
    )
    return Manifest(
        id="chain", number=number, started_ms=1, finished_ms=2, cluster=cluster, partitions=()
    )


class Creator(Fake):
    """In place of the one that connects."""

    damaged = 0
    lost: tuple[str, ...] = ()

    def __init__(self, source: object, store: DirectoryStore, *args: Any, **options: Any) -> None:
        self._store = store

    def run(self) -> Manifest:
        found = made(manifest_numbers(self._store)[-1] + 1)
        save_manifest(self._store, found)
        return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.setattr("moldau.cli.backup.cluster.source_at", lambda http: None)
    monkeypatch.setattr("moldau.client.backup.create.BackupCreator", Creator)
    store = DirectoryStore(tmp_path / "b")
    make_mark(store, Mark(format=1, id="chain", cluster_id="c"))
    save_manifest(store, made(1))
    return store


def test_nothing_is_deleted_after_records_were_lost(
    cli: Any, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Creator, "lost", ("orders-1",))
    outcome = cli("backup", "create", store.root, "--keep", "1")
    assert outcome.code == 0
    assert "note: orders-1 no longer has the records of the last backup" in outcome.err
    assert manifest_numbers(store) == [1, 2]
    monkeypatch.setattr(Creator, "lost", ())
    outcome = cli("backup", "create", store.root, "--keep", "1")
    assert "deleted 2 old backups" in outcome.err
    assert manifest_numbers(store) == [3]


def test_a_topic_that_is_not_there_and_a_damaged_list_are_said(
    cli: Any, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Creator, "damaged", 7)
    outcome = cli("backup", "create", store.root, "--topic", "orders*")
    assert "note: the cluster has no topic orders*" in outcome.err
    assert "note: the list of backup 7 is damaged" in outcome.err
