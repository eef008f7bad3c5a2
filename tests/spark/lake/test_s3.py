"""Tables at S3, against a server that speaks its protocol on this machine."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")
pytest.importorskip("moto", reason="moto is not installed: no tests of tables at S3")
pytest.importorskip("boto3", reason="boto3 is not installed: no tests of tables at S3")

import boto3
import pyarrow.dataset as ds
from botocore.exceptions import BotoCoreError
from lake_world import use_once

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake import LakeError, TableFormat, Writing, open_table
from moldau.spark.lake.files import write_files
from moldau.spark.lake.parquet import ParquetTable
from moldau.spark.lake.s3 import S3Store, s3_filesystem
from moldau.spark.lake.storage import Store, Stored
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """Options by which the server is reached; it has the bucket `lake`."""
    # In a process of its own: some of the libraries keep Python busy while they wait for S3.
    (port,) = free_ports(1)
    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key": "key",
        "secret_key": "secret",
        "region": "us-east-1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        wait_until(
            lambda: client.create_bucket(Bucket="lake"),
            "the server makes a bucket",
            ignoring=BotoCoreError,
        )
        use_once("s3://lake/once-before", options)
        yield options
    finally:
        process.terminate()
        process.wait()


@pytest.mark.safety
@pytest.mark.parametrize("kind", [str(kind) for kind in TableFormat])
def test_a_batch_is_in_a_table_at_s3_once(
    server: dict[str, str], tmp_path: Path, kind: str, schema: Any, rows: Any, offsets: Any
) -> None:
    storage = dict(server)
    if kind == "iceberg":
        storage["catalog"] = f"sqlite:///{tmp_path}/catalog.sqlite"
    location = f"s3://lake/once/{kind}"
    table = open_table(location, kind, storage=storage)
    table.ensure(schema)
    files = write_files(table.layout, schema, [rows(0, 10)])
    assert table.append(files, Writing("q", 0))
    again = open_table(location, kind, storage=storage)
    assert not again.append(write_files(again.layout, schema, [rows(0, 10)]), Writing("q", 0))
    merged = write_files(again.layout, schema, [rows(20, 23)])
    assert again.replace(again.snapshot().files[:1], merged, Writing("compact", 0))
    assert offsets(open_table(location, kind, storage=storage)) == [1, 3, 5, 7, 9, 20, 21, 22]


def test_of_many_that_create_an_object_one_succeeds(server: dict[str, str]) -> None:
    created: list[int] = []
    barrier = threading.Barrier(6)

    def create(number: int) -> None:
        store = S3Store("s3://lake/race", server)
        barrier.wait()
        if store.create("log/0.json", b"%d" % number):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert S3Store("s3://lake/race", server).read("log/0.json") == b"%d" % created[0]


class Killed(BaseException):
    """Nothing that the code under test does may follow."""


class DyingStore:
    """Does so many requests, and dies before or right after the next one."""

    def __init__(self, store: Store, steps: int, *, after: bool) -> None:
        self._store = store
        self._left = steps
        self._after = after
        self.is_dead = False

    def _do(self, name: str, *arguments: Any) -> Any:
        if self.is_dead:
            raise Killed
        self._left -= 1
        if self._left >= 0:
            return getattr(self._store, name)(*arguments)
        self.is_dead = True
        if self._after:
            getattr(self._store, name)(*arguments)
        raise Killed

    def read(self, path: str) -> bytes | None:
        return self._store.read(path)

    def exists(self, path: str) -> bool:
        return self._store.exists(path)

    def list(self, prefix: str) -> Iterator[Stored]:
        return self._store.list(prefix)

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._do("create", path, data))

    def put(self, path: str, data: bytes) -> None:
        self._do("put", path, data)

    def move(self, source: str, target: str) -> bool:
        return bool(self._do("move", source, target))

    def delete(self, path: str) -> None:
        self._do("delete", path)


@pytest.mark.safety
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_request_of_an_append_the_batch_is_there_once_after_all(
    server: dict[str, str], schema: Any, rows: Any, offsets: Any, after: bool
) -> None:
    steps = 0
    while True:
        location = f"s3://lake/killed/{after}/{steps}"

        def opened(location: str = location, store: Store | None = None) -> ParquetTable:
            return ParquetTable(location, storage=server, partition_columns=("date",), store=store)

        table = opened()
        table.ensure(schema)
        files = write_files(table.layout, schema, [rows(0, 4)])
        dying = DyingStore(S3Store(location, server), steps, after=after)
        with contextlib.suppress(Killed):
            opened(store=dying).append(files, Writing("q", 0))
        is_committed = opened().last_batch("q") == 0
        assert offsets(opened()) == (list(range(4)) if is_committed else [])
        again = opened()
        redone = write_files(again.layout, schema, [rows(0, 4)])
        assert again.append(redone, Writing("q", 0)) is not is_committed
        assert offsets(opened()) == list(range(4))
        plain = ds.dataset(
            location.removeprefix("s3://"), filesystem=s3_filesystem(server), partitioning="hive"
        )
        assert sorted(plain.to_table()["offset"].to_pylist()) == list(range(4))
        if not dying.is_dead:
            break
        steps += 1
    assert steps == 3


@pytest.mark.safety
def test_a_server_that_does_not_know_of_conditions_is_refused_before_anything_is_lost(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    store = S3Store("s3://lake/unconditional", server)
    put = store._client.put_object

    def careless(**asked: Any) -> Any:
        asked.pop("IfNoneMatch", None)
        return put(**asked)

    monkeypatch.setattr(store._client, "put_object", careless)
    table = ParquetTable(
        "s3://lake/unconditional", storage=server, partition_columns=("date",), store=store
    )
    with pytest.raises(LakeError, match="If-None-Match"):
        table.ensure(schema)
    assert list(store.list("")) == []


def test_an_unknown_storage_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_table("s3://lake/t", "parquet", storage={"endpiont": "http://127.0.0.1:1"})
    assert "endpoint" in refused.value.hint


def test_a_bucket_that_is_not_there_is_an_error_that_names_the_place(
    server: dict[str, str], schema: Any
) -> None:
    with pytest.raises(LakeError, match="s3://nowhere/t"):
        open_table("s3://nowhere/t", "parquet", storage=server).ensure(schema)
