"""A backup at S3, against a server that speaks its protocol on this machine."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: no tests of backups at S3")
pytest.importorskip("moto", reason="moto is not installed: no tests of backups at S3")

from moldau.client.backup.manifests import Mark, load_mark, make_mark
from moldau.client.backup.stores import BackupStore, open_store
from moldau.client.errors import ClientError, NotFoundError
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def store() -> Iterator[BackupStore]:
    with pytest.MonkeyPatch.context() as patch:
        yield from _served(patch)


def _served(patch: pytest.MonkeyPatch) -> Iterator[BackupStore]:
    from pyarrow.fs import S3FileSystem

    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        admin = S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)

        def has_bucket() -> bool:
            admin.create_dir("company")
            return True

        wait_until(has_bucket, "the server makes a bucket", ignoring=OSError)
        # What pyarrow opens at its first use stays open.
        open_store("s3://company/once").put("before", b"")
        yield open_store("s3://company/backups/main")
    finally:
        server.terminate()
        server.wait()


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
