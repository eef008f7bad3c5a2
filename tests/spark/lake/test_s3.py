"""Tables at S3, against a server that speaks its protocol on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")
pytest.importorskip("moto", reason="moto is not installed: no tests of tables at S3")
pytest.importorskip("boto3", reason="boto3 is not installed: no tests of tables at S3")

from lake_world import use_once
from s3_server import s3_server

from moldau.spark.lake import LakeError, Writing, open_table
from moldau.spark.lake.open import check_location, open_destination
from moldau.spark.lake.parquet_files import write_files
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.home import Home, batches_in, query_id

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """Options by which the server is reached; it has the bucket `lake`."""
    with s3_server("lake") as settings:
        use_once("s3://lake/once-before", settings)
        yield settings


@pytest.mark.safety
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_is_in_a_table_at_s3_once(
    server: dict[str, str], tmp_path: Path, kind: str, schema: Any, rows: Any, offsets: Any
) -> None:
    storage = dict(server)
    if kind == "iceberg":
        storage = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.sqlite",
            "s3.endpoint": server["AWS_ENDPOINT_URL"],
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }
    location = f"s3://lake/once/{kind}"
    table = open_table(location, kind, storage=storage)
    check_location(table)
    table.ensure(schema)
    files = write_files(table.layout, schema, [rows(0, 10)])
    assert table.append(files, Writing("q", 0))
    again = open_table(location, kind, storage=storage)
    assert not again.append(write_files(again.layout, schema, [rows(0, 10)]), Writing("q", 0))
    merged = write_files(again.layout, schema, [rows(20, 23)])
    assert again.replace(again.snapshot().files[:1], merged, Writing("compact", 0))
    assert offsets(open_table(location, kind, storage=storage)) == [1, 3, 5, 7, 9, 20, 21, 22]


def test_a_bucket_that_is_not_there_is_an_error_that_names_the_place(
    server: dict[str, str], schema: Any
) -> None:
    with pytest.raises(LakeError, match="s3://nowhere/t"):
        open_table("s3://nowhere/t", "delta", storage=server).ensure(schema)


def test_plain_files_at_s3_are_there_once_when_a_batch_is_played_again(
    server: dict[str, str], schema: Any, rows: Any
) -> None:
    for _ in range(2):
        export = open_destination("s3://lake/export", "parquet", storage=server)
        export.ensure(schema)
        export.append(write_files(export.layout, schema, [rows(0, 4)]), Writing("q", 0))
    found = [file.path for file in folder_at("s3://lake/export", server).list()]
    assert [path[:16] for path in sorted(found)] == ["date=2026-01-01/", "date=2026-01-02/"]


def test_a_pipeline_keeps_at_s3_what_it_has_to_remember(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    home = Home("s3a://lake/pipelines/keep")
    assert not home.exists
    with home.locked():
        pass
    assert home.exists
    home.checkpoint.write("metadata", b'{"id": "abc"}')
    home.checkpoint.write("commits/7", b"v1")
    assert query_id(home.checkpoint) == "abc"
    assert batches_in(home.checkpoint, "commits") == [7]
    assert str(home.checkpoint) == "s3a://lake/pipelines/keep/checkpoint"
    moved = home.reset({"orders": {"0": 5}})
    assert moved is not None
    assert list(home.checkpoint.list()) == []
    assert query_id(folder_at(moved, {})) == "abc"
    assert Home("s3://lake/pipelines/keep").read_start() == {"orders": {"0": 5}}
    home.delete()
    assert list(folder_at("s3://lake/pipelines", {}).list()) == []
