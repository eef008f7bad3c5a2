"""Other engines read what archives and compactions write: each version, and what came since one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of archives")
pl = pytest.importorskip("polars", reason="polars is not installed: nobody else to read tables")

from pipeline_context import PlainContext  # noqa: E402

from moldau.spark.pipelines import archive, compact  # noqa: E402
from moldau.testing.broker import Broker  # noqa: E402

pytestmark = pytest.mark.spark

ROWS = [0, 3, 7, 7]
"""So many are in the table after each commit; the last one is that of the compaction."""


@pytest.fixture
def place(
    spark: Any,
    broker: Broker,
    topic: str,
    fill: Callable[..., None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> str:
    """A table that was archived in two runs, and compacted."""
    common: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "home": str(tmp_path / "home"),
        "table_format": request.param,
    }
    to = str(tmp_path / "lake")
    kept = archive.SETTINGS(name="keep", topics=(topic,), to=to, **common)
    for count in (3, 4):
        fill(topic, 0, count=count)
        archive.run(kept, PlainContext(spark))
    small = compact.SETTINGS(name="small", table=to, **common)
    assert compact.run(small, PlainContext(spark)).details["files_written"] == 1
    return to


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_polars_and_datafusion_follow_a_delta_table(place: str) -> None:
    import deltalake

    for version, count in enumerate(ROWS):
        found = pl.scan_delta(place, version=version).select("offset").collect()
        assert sorted(found["offset"].to_list()) == list(range(count))
        sql = deltalake.QueryBuilder().register(
            "lake", deltalake.DeltaTable(place, version=version)
        )
        asked = sql.execute('SELECT "offset" FROM lake WHERE "partition" = 0').read_all()
        assert sorted(asked["offset"].to_pylist()) == list(range(count))
    # What came after the second version, in which the compaction is no change.
    changes = deltalake.DeltaTable(place).load_cdf(starting_version=2)
    rows = pl.DataFrame(changes.read_all())
    assert sorted(rows["offset"].to_list()) == [3, 4, 5, 6]
    assert set(rows["_change_type"].to_list()) == {"insert"}


@pytest.mark.parametrize("place", ["iceberg"], indirect=True)
def test_polars_and_pyiceberg_follow_an_iceberg_table(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog import load_catalog

    # One of its two ways to plan needs one more package.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    catalog = load_catalog("moldau", type="sql", uri=f"sqlite:///{place}/_catalog.sqlite")
    table = catalog.load_table("moldau.lake")
    snapshots = sorted(table.snapshots(), key=lambda each: each.sequence_number)
    assert len(snapshots) == len(ROWS) - 1
    for snapshot, count in zip(snapshots, ROWS[1:], strict=True):
        number = snapshot.snapshot_id
        found = pl.scan_iceberg(table, snapshot_id=number).select("offset").collect()
        assert sorted(found["offset"].to_list()) == list(range(count))
        rows = table.scan(snapshot_id=number, row_filter="timestamp >= '2023-11-14T00:00:00+00:00'")
        assert sorted(rows.to_arrow()["offset"].to_pylist()) == list(range(count))
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    new = table.incremental_append_scan(
        from_snapshot_id_exclusive=snapshots[0].snapshot_id,
        to_snapshot_id_inclusive=snapshots[-1].snapshot_id,
    )
    assert sorted(new.to_arrow()["offset"].to_pylist()) == [3, 4, 5, 6]
