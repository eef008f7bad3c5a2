"""A backup at S3, against a server that speaks its protocol on this machine."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: no tests of backups at S3")
pytest.importorskip("moto", reason="moto is not installed: no tests of backups at S3")

from s3_server import s3_server

from moldau.client.backup.manifests import Mark, load_mark, make_mark
from moldau.client.backup.stores import BackupStore, open_store
from moldau.client.errors import ClientError, NotFoundError

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def store() -> Iterator[BackupStore]:
    with s3_server("company") as settings, pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        # What pyarrow opens at its first use stays open.
        open_store("s3://company/once").put("before", b"")
        yield open_store("s3://company/backups/main")


def test_files_are_kept_listed_and_deleted(
    store: BackupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_mark(store) is None
    assert store.names("data/a") == []
    mark = Mark(format=1, id="chain", cluster_id="c")
    make_mark(store, mark)
    assert load_mark(store) == mark
    large = bytes(range(256)) * 100_000
    store.put("data/a/1.batches", large)
    assert store.get("data/a/1.batches") == large
    store.put("data/a/2.batches", b"")
    assert store.names("data/a") == ["1.batches", "2.batches"]
    assert store.names("data") == ["a"]
    assert not store.is_settled("data/a/2.batches")
    monkeypatch.setattr("moldau.client.backup.stores._SETTLED_SECONDS", -60.0)
    assert store.is_settled("data/a/2.batches")
    store.delete("data/a/2.batches")
    store.delete("data/a/2.batches")
    assert store.names("data/a") == ["1.batches"]
    with pytest.raises(NotFoundError):
        store.get("data/a/2.batches")
    with pytest.raises(ClientError, match="cannot write to s3://nobodys/place"):
        open_store("s3://nobodys/place").put("x", b"y")
