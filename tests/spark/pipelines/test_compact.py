"""Tables compacted by a real Spark."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lake_world import Row, append, archive_schema, rows_in
from pipeline_context import PlainContext

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.spark.pipelines import compact
from moldau.spark.pipelines.settings.compact import CompactSettings
from moldau.testing.waiting import wait_until

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of tables")

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
New = Callable[..., CompactSettings]


def row(offset: int, *, partition: int = 0, day: int = 0, key: str | None = "", **more: Any) -> Row:
    values: dict[str, Any] = {
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "key": None if key is None else (key or f"k{offset}").encode(),
        "value": b"v%d" % offset,
        "time_ms": T0 + day * DAY_MS + offset,
        "headers": (("n", b"%d" % offset),) if offset % 2 else (),
        **more,
    }
    return Row(**values)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    def made(format: str = "delta") -> Any:
        from moldau.spark.lake.open import open_table

        return open_table(str(tmp_path / "lake"), format)

    return made


@pytest.fixture
def new(tmp_path: Path) -> New:
    def made(**values: Any) -> CompactSettings:
        given = {"name": "c", "table": str(tmp_path / "lake"), **values}
        return CompactSettings(bootstrap="nowhere:1", home=str(tmp_path / "home"), **given)

    return made


def by_date(files: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files:
        date = file.partition["date"]
        found[date] = found.get(date, 0) + 1
    return dict(sorted(found.items()))


@pytest.mark.safety
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_small_files_become_few_and_rows_that_are_there_twice_stay_once(
    spark: Any, opened: Any, new: New, format: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[format])
    table = opened(format)
    for first in (0, 10, 20):
        append(table, [row(n) for n in range(first, first + 10)])
        append(table, [row(n, partition=1, day=1) for n in range(first, first + 10)])
    # At least once, of one date.
    append(table, [row(n) for n in range(5, 15)])
    wanted = [*(row(n) for n in range(30)), *(row(n, partition=1, day=1) for n in range(30))]
    settings = new(table_format=format)
    plan = compact.plan(settings)
    assert [(step.what, step.rows) for step in plan.steps] == [
        ("date=2023-11-14: merge 4 files into 1", 40),
        ("date=2023-11-15: merge 3 files into 1", 30),
        ("search for duplicate rows", 70),
    ]
    outcome = compact.run(settings, PlainContext(spark))
    assert outcome.ok
    assert outcome.summary == "7 files became 2, 60 rows kept, 10 duplicates dropped"
    assert by_date(table.snapshot().files) == {"2023-11-14": 1, "2023-11-15": 1}
    assert rows_in(opened(format)) == wanted
    if format == "delta":
        again = compact.run(settings, PlainContext(spark))
        assert again.summary == "nothing to compact"


@pytest.mark.safety
def test_only_the_newest_row_of_a_key_stays(spark: Any, opened: Any, new: New) -> None:
    table = opened()
    rows = [
        row(0, key="a"),
        row(1, key="b"),
        row(2, key="a"),
        row(3, key=None),
        row(4, key="gone"),
        row(5, key=None),
        row(6, key="gone", value=None, day=1),
        # Older by its time, and newer by its offset: within a partition, the offset counts.
        row(7, key="b", time_ms=T0 - 5),
        # Between partitions the time does.
        row(0, partition=1, key="a", day=2),
        row(1, partition=1, key="c", topic="bills"),
        row(1, key="c", topic="orders"),
    ]
    rows[-1] = row(8, key="c")
    append(table, rows[:6])
    append(table, rows[6:])
    append(table, rows[2:4])
    kept = [rows[9], rows[3], rows[5], rows[6], rows[7], rows[10], rows[8]]
    outcome = compact.run(new(latest_per_key=True), PlainContext(spark))
    assert rows_in(table) == kept
    counted = {
        name: outcome.details[name]
        for name in ("rows", "kept", "duplicates", "older", "tombstones")
    }
    assert counted == {"rows": 13, "kept": 7, "duplicates": 2, "older": 4, "tombstones": 0}
    settings = new(latest_per_key=True, drop_tombstones=True)
    outcome = compact.run(settings, PlainContext(spark))
    assert (outcome.details["tombstones"], outcome.details["kept"]) == (1, 6)
    assert rows_in(table) == [each for each in kept if each.value is not None]


def test_files_come_out_as_large_as_asked_for_and_in_order(
    spark: Any, opened: Any, new: New
) -> None:
    table = opened()
    for part in range(4):
        append(table, [row(n, value=os.urandom(1000)) for n in range(part * 100, part * 100 + 100)])
    wanted = rows_in(table)
    outcome = compact.run(new(file_bytes=260_000), PlainContext(spark))
    assert (outcome.details["files"], outcome.details["files_written"]) == (4, 2)
    assert rows_in(table) == wanted
    assert sorted(file.offsets for file in table.snapshot().files) == [(0, 199), (200, 399)]


@pytest.mark.safety
def test_a_table_without_partitions_is_rewritten_only_if_it_is_worth_it(
    spark: Any, new: New
) -> None:
    from moldau.spark.lake.open import open_table

    settings = new(file_bytes=64 * 1024)
    table = open_table(settings.table, "delta", partition_columns=())
    append(table, [row(n, value=os.urandom(1000)) for n in range(100)])
    append(table, [row(100)])
    assert compact.run(settings, PlainContext(spark)).summary == "nothing to compact"
    append(table, [row(100)])
    assert compact.run(settings, PlainContext(spark)).details["duplicates"] == 1
    assert [found.offset for found in rows_in(table)] == list(range(101))


def test_rows_of_the_same_place_that_differ_stop_it(spark: Any, opened: Any, new: New) -> None:
    table = opened()
    append(table, [row(n) for n in range(5)])
    append(table, [row(3, value=b"another")])
    before = table.snapshot()
    outcome = compact.run(new(), PlainContext(spark))
    assert not outcome.ok
    assert "differ: orders-0 offset 3" in outcome.summary
    assert table.snapshot() == before


def test_a_null_counts_wherever_it_stands(spark: Any) -> None:
    from moldau.spark.pipelines.rows import row_hash

    kind = (
        "value struct<a: int, b: int, in: struct<c: string, `d.e`: string>>, m map<string,int>, "
        "list array<int>"
    )
    one = {"a": 1, "b": None, "in": None}
    rows: list[tuple[Any, ...]] = [
        (one, None, None),
        ({**one, "a": None, "b": 1}, None, None),
        ({**one, "in": {"c": "x", "d.e": None}}, None, None),
        ({**one, "in": {"c": None, "d.e": "x"}}, None, None),
        ({**one, "in": {"c": None, "d.e": None}}, None, None),
        (one, {"k": None}, None),
        (one, {}, None),
        (one, None, []),
        (None, None, None),
    ]
    frame = spark.createDataFrame([*rows, *rows], kind)
    hashes = [found[0] for found in frame.select(row_hash(frame, frame.columns)).collect()]
    assert hashes[: len(rows)] == hashes[len(rows) :]
    assert len(set(hashes)) == len(rows)


def left_over(table: Any) -> int:
    """Files of the folder that are none of the table, now or before."""
    found = {path.name for path in Path(table.location).rglob("*.parquet")}
    log = Path(table.location) / "_delta_log"
    named = "".join(path.read_text() for path in log.glob("*.json"))
    return sum(name not in named for name in found)


def test_what_is_written_wrong_is_not_committed(
    spark: Any, opened: Any, new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened()
    for first in (0, 10):
        append(table, [row(n) for n in range(first, first + 10)])
    before = table.snapshot()
    from moldau.spark.pipelines.rows import deduplicated as right

    def wrong(change: str) -> Callable[..., Any]:
        return lambda rows: right(rows).selectExpr(
            *(f"{change} AS value" if name == "value" else name for name in rows.columns)
        )

    faults = {
        "one row less": lambda rows: right(rows).where("offset != 7"),
        "another value": wrong("if(offset = 7, key, value)"),
    }
    for what, fault in faults.items():
        monkeypatch.setattr(compact, "deduplicated", fault)
        outcome = compact.run(new(), PlainContext(spark))
        assert not outcome.ok, what
        assert "expected 20 rows" in outcome.summary
        assert (table.snapshot(), left_over(table)) == (before, 0), what


@pytest.mark.safety
def test_commits_that_come_in_between_are_not_lost(spark: Any, opened: Any, new: New) -> None:
    table = opened()
    for first in range(0, 40, 10):
        append(table, [row(n) for n in range(first, first + 10)])
    written = 40
    is_over = threading.Event()

    def archive() -> None:
        nonlocal written
        other = opened()
        while not is_over.is_set():
            append(other, [row(n) for n in range(written, written + 10)])
            written += 10
            time.sleep(0.05)

    thread = threading.Thread(target=archive)
    thread.start()
    try:
        wait_until(lambda: written > 40, "the archive grows")
        outcome = compact.run(new(), PlainContext(spark))
    finally:
        is_over.set()
        thread.join()
    assert outcome.ok
    assert outcome.details["files"] >= 4
    assert written > 40
    assert rows_in(opened()) == [row(n) for n in range(written)]


def test_another_compaction_that_is_faster_makes_it_start_over(
    spark: Any, opened: Any, new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened()
    for first in (0, 10, 20):
        append(table, [row(n) for n in range(first, first + 10)])
    compare = compact._Compaction._compare
    calls = []

    def slow(self: Any, *args: Any) -> None:
        compare(self, *args)
        calls.append(1)
        if len(calls) == 1:
            other = compact.run(new(name="other"), PlainContext(spark))
            assert other.summary == "3 files became 1, 30 rows kept"
            append(opened(), [row(n) for n in range(30, 40)])

    monkeypatch.setattr(compact._Compaction, "_compare", slow)
    outcome = compact.run(new(), PlainContext(spark))
    assert (outcome.details["attempts"], outcome.details["files"]) == (2, 2)
    assert rows_in(table) == [row(n) for n in range(40)]
    assert left_over(table) == 0


class Killed(BaseException):
    """As if the process had ended."""


@pytest.mark.parametrize("step", ["_commit", "replace"])
def test_a_crash_leaves_the_old_table_or_the_new_one(
    spark: Any, opened: Any, new: New, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moldau.spark.lake.delta import DeltaLakeTable

    table = opened()
    for first in (0, 10):
        append(table, [row(n) for n in range(first, first + 10)])
    owner: Any = DeltaLakeTable if step == "replace" else compact._Compaction
    real = getattr(owner, step)

    def deadly(self: Any, *args: Any, **options: Any) -> Any:
        if step == "replace":
            real(self, *args, **options)
        raise Killed

    monkeypatch.setattr(owner, step, deadly)
    # Nothing is tidied up by who is dead.
    monkeypatch.setattr(compact, "discard", lambda table, added: None)
    with pytest.raises(Killed):
        compact.run(new(), PlainContext(spark))
    monkeypatch.undo()
    assert len(opened().snapshot().files) == (1 if step == "replace" else 2)
    assert rows_in(opened()) == [row(n) for n in range(20)]


def test_old_files_that_no_commit_names_are_removed_if_asked_for(
    spark: Any, opened: Any, new: New, tmp_path: Path
) -> None:
    table = opened()
    append(table, [row(n) for n in range(10)])
    orphans = [tmp_path / "lake" / "date=2023-11-14" / f"part-{n}.parquet" for n in range(2)]
    for orphan in orphans:
        orphan.write_bytes(b"left behind")
    os.utime(orphans[0], (time.time() - 3 * 24 * 3600,) * 2)
    outcome = compact.run(new(clean_seconds=48 * 3600.0), PlainContext(spark))
    assert outcome.summary == "nothing to compact; 1 orphan files removed"
    assert [orphan.exists() for orphan in orphans] == [False, True]
    assert rows_in(table) == [row(n) for n in range(10)]


def test_a_table_that_is_not_there_or_of_another_layout_is_refused(
    opened: Any, new: New, tmp_path: Path
) -> None:
    import pyarrow as pa

    for refused in (compact.plan, lambda settings: compact.run(settings, PlainContext(None))):
        with pytest.raises(NotFoundError, match="there is no delta table at"):
            refused(new())
    assert not (tmp_path / "lake").exists()
    names = [name for name in archive_schema().names if name != "offset"]
    opened().ensure(pa.schema([archive_schema().field(name) for name in names]))
    for refused in (compact.plan, lambda settings: compact.run(settings, PlainContext(None))):
        with pytest.raises(
            InvalidArgumentError, match="is not an archive: it has no column offset"
        ):
            refused(new())


def test_an_empty_table_and_a_date_that_is_not_there(spark: Any, opened: Any, new: New) -> None:
    opened().ensure(archive_schema())
    assert compact.plan(new()).warnings == ("the table is empty",)
    assert compact.run(new(), PlainContext(spark)).summary == "nothing to compact"
    with pytest.raises(InvalidArgumentError, match="no data for --date 2026-01-01"):
        compact.plan(new(dates=("2026-01-01",)))
