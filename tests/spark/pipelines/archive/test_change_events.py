"""What records change: rows, their keys, and events of Debezium."""

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.client.errors import InvalidArgumentError  # noqa: E402
from moldau.spark.pipelines.archive.change_events import (  # noqa: E402
    UpsertSettings,
    changed_rows,
    events_in,
    row_type,
)

pytestmark = pytest.mark.inprocess

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
EVENT = pa.struct([("before", ROW), ("after", ROW), ("op", pa.string())])


def batch(values: list[Any], kind: Any, *, keys: list[Any] | None = None) -> Any:
    keys = [b"k%d" % at for at in range(len(values))] if keys is None else keys
    raw = [b"raw"] * len(values)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, kind), pa.array(raw, pa.binary())],
        names=["key", "value", "raw"],
    )


def test_a_record_without_a_value_deletes_and_one_without_a_key_changes_nothing() -> None:
    rows = batch([b"a", None, b"c"], pa.binary(), keys=[b"1", b"2", None]).drop_columns(["raw"])
    good, bad = changed_rows(rows, UpsertSettings(keys=("key",)))
    assert good.column("_deleted").to_pylist() == [False, True]
    assert bad.to_pylist() == [
        {"key": None, "raw": b"c", "error": "not a row change: the key is null, see --key"}
    ]


def test_events_of_debezium_are_the_rows_that_they_hold() -> None:
    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    events = [
        {"op": "r", "before": None, "after": old},
        {"op": "u", "before": old, "after": new},
        {"op": "d", "before": new, "after": None},
        None,
        {"op": "t", "before": None, "after": None},
        {"op": "u", "before": old, "after": None},
    ]
    good, bad = changed_rows(
        batch(events, EVENT), UpsertSettings(keys=("key",), envelope="debezium")
    )
    assert good.column("value").to_pylist() == [old, new, new, None]
    assert good.column("_deleted").to_pylist() == [False, False, True, True]
    assert bad.column("error").to_pylist() == [
        "invalid or unsupported Debezium event, op t",
        "invalid or unsupported Debezium event, op u",
    ]
    # By a field of the row: the record that follows a delete has none, and says nothing new.
    by_id = UpsertSettings(keys=("value.id",), envelope="debezium")
    good, bad = changed_rows(batch(events[:4], EVENT), by_id)
    assert [row["id"] for row in good.column("value").to_pylist()] == [1, 1, 1]
    assert bad.num_rows == 0


def test_events_beside_their_schema_are_found() -> None:
    kind = pa.struct([("schema", pa.string()), ("payload", EVENT)])
    row = {"id": 7, "name": "x"}
    values = [{"schema": "…", "payload": {"op": "c", "before": None, "after": row}}]
    good, _ = changed_rows(batch(values, kind), UpsertSettings(keys=("key",), envelope="debezium"))
    assert good.column("value").to_pylist() == [row]
    assert row_type(kind, UpsertSettings(keys=("key",), envelope="debezium")) == ROW


def test_rows_before_a_change_have_the_fields_of_those_after_it() -> None:
    old = pa.struct([("id", pa.int64()), ("gone", pa.string())])
    kind = pa.struct([("before", old), ("after", ROW), ("op", pa.string())])
    values = [{"op": "d", "before": {"id": 4, "gone": "x"}, "after": None}]
    good, _ = changed_rows(
        batch(values, kind), UpsertSettings(keys=("value.id",), envelope="debezium")
    )
    assert good.column("value").to_pylist() == [{"id": 4, "name": None}]


def test_rows_are_found_in_events_before_anybody_knows_their_schema() -> None:
    bare = b'{"op": "r", "before": null, "after": {"id": 1}, "source": {"lsn": null}}'
    assert events_in([bare, b"no json", b"[]"], "none") == (False, [b'{"id":1}'])
    beside = b'{"schema": {"default": 1}, "payload": {"op": "d", "before": {"id": 2}}}'
    assert events_in([b"\0\0\0\0\1" + beside], "confluent") == (True, [b'{"id":2}'])


def test_a_key_without_the_header_that_it_should_have_changes_nothing() -> None:
    keys = [b"\0\0\0\0\1a", b"abc", b"\0\0\0\0\1", b"longer than that"]
    rows = batch([b"v"] * 4, pa.binary(), keys=keys)
    good, bad = changed_rows(rows, UpsertSettings(keys=("key",), key_framing="confluent"))
    assert good.column("key").to_pylist() == keys[:1]
    assert set(bad.column("error").to_pylist()) == {
        "the key has no Confluent header, see --key-framing"
    }


def test_a_before_of_another_type_is_no_row() -> None:
    kind = pa.struct([("before", pa.string()), ("after", ROW), ("op", pa.string())])
    values = [{"op": "d", "before": "?", "after": None}]
    good, _ = changed_rows(batch(values, kind), UpsertSettings(keys=("key",), envelope="debezium"))
    assert good.column("value").to_pylist() == [None]
    assert good.column("_deleted").to_pylist() == [True]


def test_a_field_of_another_type_before_a_change_spoils_no_other() -> None:
    before = pa.struct([("id", pa.int64()), ("name", pa.int64())])
    kind = pa.struct([("before", before), ("after", ROW), ("op", pa.string())])
    values = [{"op": "d", "before": {"id": 1, "name": 2}, "after": None}]
    good, _ = changed_rows(
        batch(values, kind), UpsertSettings(keys=("value.id",), envelope="debezium")
    )
    assert good.column("value").to_pylist() == [{"id": 1, "name": None}]


def test_a_tombstone_has_no_field_to_be_found_by() -> None:
    good, bad = changed_rows(batch([{"id": 1}, None], ROW), UpsertSettings(keys=("value.id",)))
    assert good.num_rows == 1
    assert bad.column("error").to_pylist() == ["not a row change: field id is null, see --key"]


def test_what_values_do_not_have_is_said_with_the_option() -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        row_type(ROW, UpsertSettings(keys=("key",), envelope="debezium"))
    assert "--envelope" in refused.value.hint
    with pytest.raises(InvalidArgumentError, match=r"--key value\.nr") as refused:
        row_type(ROW, UpsertSettings(keys=("value.nr",)))
    assert "id, name" in refused.value.hint
