"""What tables of every format owe to those who use them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

import pyarrow as pa
from lake_world import read_table

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake import (
    ConflictError,
    LakeError,
    LakeTable,
    Writing,
    open_table,
)
from moldau.spark.lake.model import TABLES, marked
from moldau.spark.lake.parquet_files import write_files
from moldau.spark.lake.storage import Folder

pytestmark = pytest.mark.spark

FORMATS = [str(kind) for kind in TABLES]


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    package = {"delta": "deltalake", "iceberg": "pyiceberg"}.get(request.param)
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path) -> Callable[[], LakeTable]:
    return lambda: open_table(str(tmp_path / "table"), kind)


def schema_of(table: LakeTable) -> Any:
    found = table.schema()
    assert found is not None
    return found


@pytest.mark.safety
def test_a_batch_is_in_the_table_once_however_often_it_is_appended(
    opened: Callable[[], LakeTable], schema: Any, rows: Any, offsets: Any
) -> None:
    table = opened()
    table.ensure(schema)
    assert table.snapshot().rows == 0
    assert table.append(write_files(table.layout, schema, [rows(0, 10)]), Writing("q", 0))
    again = opened()
    assert again.last_batch("q") == 0
    assert not again.append(write_files(again.layout, schema, [rows(0, 10)]), Writing("q", 0))
    assert again.append(write_files(again.layout, schema, [rows(10, 15)]), Writing("q", 1))
    # Another query has numbers of its own.
    assert again.append(write_files(again.layout, schema, [rows(15, 20)]), Writing("other", 0))
    assert offsets(opened()) == list(range(20))
    assert opened().snapshot().rows == 20
    assert opened().last_batch("q") == 1
    assert opened().last_batch("nobody") is None


def test_rows_come_back_as_they_were_with_their_partition_column(
    opened: Callable[[], LakeTable], schema: Any, rows: Any
) -> None:
    table = opened()
    table.ensure(schema)
    written = rows(0, 4)
    table.append(write_files(table.layout, schema, [written]), Writing("q", 0))
    assert sorted(file.offsets or () for file in opened().snapshot().files) == [(0, 2), (1, 3)]
    back = pa.Table.from_batches(list(read_table(opened()))).sort_by("offset")
    assert back.schema.names == schema.names
    assert back.to_pylist() == written.to_pylist()
    some = pa.Table.from_batches(list(read_table(opened(), ["date", "offset"])))
    assert some.schema.names == ["date", "offset"]
    assert some.num_rows == 4


def test_files_take_the_place_of_others_in_one_commit(
    opened: Callable[[], LakeTable], schema: Any, rows: Any, offsets: Any
) -> None:
    table = opened()
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 10)]), Writing("q", 0))
    before = table.snapshot()
    merged = write_files(table.layout, schema, [rows(100, 103)])
    assert table.replace(before.files, merged, Writing("compact", 0))
    assert offsets(opened()) == [100, 101, 102]
    assert opened().last_batch("q") == 0
    late = write_files(table.layout, schema, [rows(7, 8)])
    with pytest.raises(ConflictError):
        table.replace(before.files[:1], late, Writing("compact", 1))
    assert offsets(opened()) == [100, 101, 102]


@pytest.mark.safety
def test_writers_at_the_same_time_all_get_their_rows_in_once(
    opened: Callable[[], LakeTable], schema: Any, rows: Any, offsets: Any
) -> None:
    opened().ensure(schema)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            table = opened()
            for batch in range(3):
                first = number * 100 + batch * 10
                files = write_files(table.layout, schema, [rows(first, first + 2)])
                # Two that believe to be the same query, as an old driver that is not dead yet.
                table.append(files, Writing(f"q{number}", batch))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wanted = [n * 100 + b * 10 + at for n in (1, 2) for b in range(3) for at in range(2)]
    assert offsets(opened()) == wanted


def test_new_columns_are_added_and_old_rows_have_nothing_in_them(
    opened: Callable[[], LakeTable], schema: Any, rows: Any
) -> None:
    table = opened()
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 2)]), Writing("q", 0))
    wider = pa.schema([*schema, pa.field("country", pa.string())])
    again = opened()
    again.ensure(wider)
    assert schema_of(again).names == [*schema.names[:-1], "country", "date"]
    batch = rows(2, 4)
    batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(["cz", "de"])], schema=wider)
    again.append(write_files(again.layout, wider, [batch]), Writing("q", 1))
    back = pa.Table.from_batches(list(read_table(opened(), ["offset", "country"])))
    found = {row["offset"]: row["country"] for row in back.to_pylist()}
    assert found == {0: None, 1: None, 2: "cz", 3: "de"}


def test_structs_take_new_fields_and_old_rows_have_nothing_in_them(
    opened: Callable[[], LakeTable],
) -> None:
    def rows(kind: Any, values: list[Any]) -> Any:
        return pa.RecordBatch.from_arrays(
            [
                pa.array(range(len(values)), pa.int64()),
                pa.array(values, kind),
                pa.array([0] * len(values), pa.timestamp("us", "UTC")),
                pa.array(["1970-01-01"] * len(values)),
            ],
            names=["offset", "value", "timestamp", "date"],
        )

    item = pa.struct([("sku", pa.string())])
    old = pa.struct([("id", pa.int64()), ("items", pa.list_(item))])
    wider = pa.struct([("sku", pa.string()), ("count", pa.int64())])
    new = pa.struct([("id", pa.int64()), ("items", pa.list_(wider)), ("note", pa.string())])
    first = rows(old, [{"id": 1, "items": [{"sku": "a"}]}])
    second = rows(new, [{"id": 2, "items": [{"sku": "b", "count": 5}], "note": "n"}])
    for number, batch in enumerate((first, second)):
        table = opened()
        table.ensure(batch.schema)
        table.append(write_files(table.layout, batch.schema, [batch]), Writing("q", number))
    found = [row["value"] for batch in read_table(opened()) for row in batch.to_pylist()]
    assert sorted(found, key=lambda value: value["id"]) == [
        {"id": 1, "items": [{"sku": "a", "count": None}], "note": None},
        {"id": 2, "items": [{"sku": "b", "count": 5}], "note": "n"},
    ]
    # Whoever comes with the old schema goes on as before.
    opened().ensure(first.schema)
    assert schema_of(opened()).field("value").type == new


def test_numbers_become_wider_where_the_format_can(
    opened: Callable[[], LakeTable], kind: str
) -> None:
    def schema(number: Any) -> Any:
        return pa.schema(
            [
                ("value", pa.struct([("n", number)])),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("date", pa.string()),
            ]
        )

    opened().ensure(schema(pa.int32()))
    if kind == "delta":
        with pytest.raises(LakeError, match="which deltalake does not support") as refused:
            opened().ensure(schema(pa.int64()))
        assert "--schema" in refused.value.hint
        return
    opened().ensure(schema(pa.int64()))
    assert schema_of(opened()).field("value").type.field("n").type == pa.int64()
    # A narrow one fits into it.
    opened().ensure(schema(pa.int32()))
    with pytest.raises(LakeError, match="cannot change column"):
        opened().ensure(schema(pa.string()))


def test_a_column_of_another_type_is_refused_with_the_option_to_change(
    opened: Callable[[], LakeTable], schema: Any
) -> None:
    table = opened()
    table.ensure(schema)
    decoded = pa.struct([pa.field("amount", pa.int64())])
    changed = schema.set(schema.get_field_index("value"), pa.field("value", decoded))
    with pytest.raises(LakeError, match="column value") as refused:
        opened().ensure(changed)
    assert "--to" in refused.value.hint
    assert "--decode" in refused.value.hint


def test_a_table_that_is_partitioned_otherwise_is_refused(
    kind: str, tmp_path: Path, schema: Any
) -> None:
    open_table(str(tmp_path / "table"), kind).ensure(schema)
    with pytest.raises(LakeError, match=r"partitioned by (date|day\(timestamp_day\)), not by no"):
        open_table(str(tmp_path / "table"), kind, partition_columns=()).snapshot()


def test_a_file_that_is_not_there_is_not_committed(
    opened: Callable[[], LakeTable], schema: Any, rows: Any, offsets: Any
) -> None:
    table = opened()
    table.ensure(schema)
    files = write_files(table.layout, schema, [rows(0, 2)])
    (Path(table.location) / files[0].path).unlink()
    with pytest.raises(LakeError, match="is missing"):
        table.append(files, Writing("q", 0))
    assert opened().last_batch("q") is None
    assert offsets(opened()) == []


def test_a_file_that_is_committed_while_old_ones_are_looked_for_stays(
    opened: Callable[[], LakeTable],
    kind: str,
    schema: Any,
    rows: Any,
    offsets: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind == "delta":
        pytest.skip("deltalake does the listing")
    table: Any = opened()
    table.ensure(schema)
    files = write_files(table.layout, schema, [rows(0, 4)])
    listing = Folder.list

    def slow(folder: Folder) -> Any:
        if opened().last_batch("q") is None:
            opened().append(files, Writing("q", 0))
        return listing(folder)

    monkeypatch.setattr(Folder, "list", slow)
    table.clean(orphan_seconds_min=0)
    assert offsets(opened()) == [0, 1, 2, 3]


def test_clean_leaves_tables_alone_that_lie_below(
    opened: Callable[[], LakeTable], kind: str, schema: Any, rows: Any, offsets: Any
) -> None:
    place = opened().location
    for location in (place, f"{place}/orders"):
        table = open_table(location, kind)
        table.ensure(schema)
        table.append(write_files(table.layout, schema, [rows(0, 4)]), Writing("q", 0))
    write_files(opened().layout, schema, [rows(4, 6)])
    old = time.time() - 30 * 24 * 3600
    for path in Path(place).rglob("*"):
        os.utime(path, (old, old))
    assert opened().clean() == 2
    assert opened().clean() == 0
    for location in (place, f"{place}/orders"):
        assert offsets(open_table(location, kind)) == [0, 1, 2, 3]


def test_a_delta_table_with_deletion_vectors_is_not_read_as_if_it_had_none(
    tmp_path: Path, schema: Any
) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = open_table(str(tmp_path / "table"), "delta")
    table.ensure(schema)
    deltalake.DeltaTable(str(tmp_path / "table")).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(LakeError, match="deletion vectors"):
        open_table(str(tmp_path / "table"), "delta").snapshot()


def test_iceberg_files_of_deletes_are_not_passed_over(
    tmp_path: Path, schema: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.table import DataScan

    table = open_table(str(tmp_path / "table"), "iceberg")
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 4)]), Writing("q", 0))
    planned = DataScan.plan_files

    def with_deletes(scan: Any) -> Any:
        # pyiceberg writes none itself.
        tasks = list(planned(scan))
        tasks[0].delete_files.add(tasks[0].file)
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(LakeError, match="delete files"):
        table.snapshot()


def test_two_iceberg_tables_of_one_catalog_with_one_name_are_not_mixed(
    tmp_path: Path, schema: Any
) -> None:
    pytest.importorskip("pyiceberg")
    storage = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite"}
    open_table(str(tmp_path / "a/orders"), "iceberg", storage=storage).ensure(schema)
    with pytest.raises(LakeError, match="a/orders, not at"):
        open_table(str(tmp_path / "b/orders"), "iceberg", storage=storage).ensure(schema)


def test_to_look_for_a_table_leaves_nothing_behind(
    opened: Callable[[], LakeTable], tmp_path: Path
) -> None:
    assert opened().schema() is None
    assert opened().snapshot().version is None
    assert list(read_table(opened())) == []
    assert opened().clean() == 0
    assert not (tmp_path / "table").exists()


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_table(str(tmp_path), "orc")
    assert "delta or iceberg or parquet" in refused.value.hint


def test_iceberg_at_s3_asks_for_a_catalog(schema: Any) -> None:
    pytest.importorskip("pyiceberg")
    table = open_table("s3://bucket/table", "iceberg", storage={"s3.region": "eu-central-1"})
    with pytest.raises(InvalidArgumentError) as refused:
        table.ensure(schema)
    assert "type=rest" in refused.value.hint


@pytest.mark.safety
def test_a_table_that_changed_since_a_version_is_not_replaced_on_top_of_it(
    opened: Callable[[], LakeTable], schema: Any, rows: Any, offsets: Any
) -> None:
    table = opened()
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 2)]), Writing("q", 0))
    seen = table.snapshot()
    added = write_files(table.layout, schema, [rows(2, 4)])
    opened().append(write_files(table.layout, schema, [rows(2, 4)]), Writing("other", 0))
    with pytest.raises(ConflictError, match="is no longer at"):
        table.replace((), added, Writing("upsert", 0), since=seen.version)
    now = table.snapshot().version
    assert table.replace((), added, Writing("upsert", 0), since=now)
    assert offsets(opened()) == [0, 1, 2, 2, 3, 3]


def test_marks_are_kept_by_the_table(opened: Callable[[], LakeTable], schema: Any) -> None:
    table = opened()
    table.ensure(schema)
    assert table.mark("writer.a") is None
    table.append((), Writing("q", 0, (("writer.a", "a"), ("topic.t", "a"))))
    assert opened().mark("topic.t") == opened().mark("writer.a") == marked("a")


def test_a_column_that_was_renamed_is_not_taken_for_nulls(
    tmp_path: Path, schema: Any, rows: Any
) -> None:
    """By an engine that renames: deltalake does not."""
    table: Any = open_table(str(tmp_path / "table"), "iceberg")
    table.ensure(schema)
    table.append(write_files(table.layout, schema, [rows(0, 2)]), Writing("q", 0))
    with table._load().update_schema() as update:
        update.rename_column("key", "name")
    with pytest.raises(LakeError, match="has the column key, which is not in the table"):
        list(read_table(table))


def test_clean_knows_files_of_a_catalog_that_spells_the_place_otherwise(
    tmp_path: Path, schema: Any, rows: Any, offsets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moldau.spark.lake.iceberg import IcebergTable

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_uri", lambda self: f"file:{self.location}")
        table = open_table(str(tmp_path / "table"), "iceberg")
        table.ensure(schema)
        table.append(write_files(table.layout, schema, [rows(0, 2)]), Writing("q", 0))
    table = open_table(str(tmp_path / "table"), "iceberg")
    assert table.clean(orphan_seconds_min=0.0) == 0
    assert offsets(table) == [0, 1]
