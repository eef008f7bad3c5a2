"""What other engines see of a table that is followed commit by commit, and what they can skip."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

import pyarrow.compute as pc

from moldau.spark.lake import LakeTable, Writing, open_table
from moldau.spark.lake.iceberg import expire_snapshots
from moldau.spark.lake.parquet_files import write_files

pytestmark = pytest.mark.spark


@pytest.fixture
def filled(tmp_path: Path, schema: Any, rows: Any) -> Any:
    """Opens a table of some format with three commits of ten rows."""

    def make(kind: str) -> LakeTable:
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
        table = open_table(str(tmp_path / "table"), kind)
        table.ensure(schema)
        for batch in range(3):
            files = write_files(table.layout, schema, [rows(10 * batch, 10 * batch + 10)])
            table.append(files, Writing("q", batch))
        return table

    return make


def compact(table: LakeTable, schema: Any, batches: list[Any], *, same_rows: bool = True) -> None:
    merged = write_files(table.layout, schema, batches)
    last = table.last_batch("compact")
    number = 0 if last is None else last + 1
    assert table.replace(
        table.snapshot().files, merged, Writing("compact", number), same_rows=same_rows
    )


def of_iceberg(table: Any) -> Any:
    return table._catalog().load_table(table._identifier)


@pytest.mark.safety
def test_every_snapshot_of_an_iceberg_table_has_all_rows(
    filled: Any, schema: Any, rows: Any
) -> None:
    table = filled("iceberg")
    compact(table, schema, [rows(0, 30)])
    compact(table, schema, [rows(0, 29)], same_rows=False)
    found = of_iceberg(table)
    snapshots = sorted(found.snapshots(), key=lambda each: each.sequence_number)
    counts = [found.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in snapshots]
    assert counts == [10, 20, 30, 30, 29]
    assert [str(each.summary.operation.value) for each in snapshots] == [
        "append",
        "append",
        "append",
        "replace",
        "overwrite",
    ]
    assert [each.summary["total-records"] for each in snapshots] == [str(n) for n in counts]


def test_a_delta_compaction_is_no_change_of_data_unless_rows_are_dropped(
    filled: Any, schema: Any, rows: Any
) -> None:
    table = filled("delta")
    compact(table, schema, [rows(0, 30)])
    assert _changes(table) == {False}
    compact(table, schema, [rows(0, 29)], same_rows=False)
    assert _changes(table) == {True}


def _changes(table: LakeTable) -> set[bool]:
    """What the last commit says of each file."""
    entries = sorted((Path(table.location) / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in entries[-1].read_text().splitlines()]
    found = [action.get("add") or action.get("remove") for action in actions]
    return {each["dataChange"] for each in found if each}


def test_a_reader_of_delta_opens_only_files_that_can_hold_an_offset(filled: Any) -> None:
    import deltalake

    table = filled("delta")
    found = deltalake.DeltaTable(table.location)
    actions = [entry["min"] for entry in _bounds(found)]
    assert sorted(entry["offset"] for entry in actions) == [0, 1, 10, 11, 20, 21]
    assert {str(entry["timestamp"])[:10] for entry in actions} == {"2026-01-01", "2026-01-02"}
    dataset = found.to_pyarrow_dataset()
    files = list(dataset.get_fragments(filter=pc.field("offset") > 24))
    assert len(files) == 2
    assert dataset.to_table(filter=pc.field("offset") > 24).num_rows == 5


def _bounds(found: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    actions: list[dict[str, Any]] = pa.table(found.get_add_actions(flatten=False)).to_pylist()
    return actions


def test_snapshots_expire_and_what_they_alone_named_is_cleaned_away(
    filled: Any, schema: Any, rows: Any, offsets: Any
) -> None:
    table = filled("iceberg")
    found = of_iceberg(table)
    first = sorted(found.snapshots(), key=lambda each: each.sequence_number)[0]
    found.manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    compact(table, schema, [rows(0, 30)])
    with of_iceberg(table).transaction() as transaction:
        expire_snapshots(transaction, count_max=1, seconds_max=3600.0)
    found = of_iceberg(table)
    assert len(found.snapshots()) == 2
    # The files of two snapshots, and their manifests and lists of manifests.
    assert table.clean(orphan_seconds_min=0.0) >= 4
    assert offsets(table) == list(range(30))
    assert found.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 10
    with of_iceberg(table).transaction() as transaction:
        expire_snapshots(transaction, count_max=100, seconds_max=0.0)
    assert len(of_iceberg(table).snapshots()) == 2


def test_the_metadata_of_an_iceberg_table_stays_small(
    filled: Any, schema: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.spark.lake.iceberg.SNAPSHOTS_MAX", 5)
    table = filled("iceberg")
    sizes = []
    for batch in range(3, 30):
        files = write_files(table.layout, schema, [rows(batch, batch + 1)])
        table.append(files, Writing("q", batch))
        path = of_iceberg(table).metadata_location.removeprefix("file://")
        sizes.append(Path(path).stat().st_size)
    assert len(of_iceberg(table).snapshots()) == 5
    # A line in the log of metadata and one in that of snapshots is all that a commit adds.
    assert sizes[-1] < 2 * sizes[5]
    assert of_iceberg(table).properties["write.metadata.delete-after-commit.enabled"] == "true"
