"""Columns of what is written: their types, and their values out of Arrow."""

import datetime

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.sink.columns import Row, check_columns, rows_of


def test_the_columns_of_a_topic_can_be_written_and_others_are_let_go() -> None:
    types = {
        "key": "binary",
        "value": "string",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    check_columns(types, topic=None, takes_timestamps=True)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"key": "string"}, "the column value is missing"),
        ({"value": "int"}, "column value has type int, and must be binary or string"),
        ({"value": "string", "key": "date"}, "column key has type date"),
        ({"value": "string", "partition": "bigint"}, "column partition has type bigint"),
        ({"value": "string", "headers": "map<string,binary>"}, "column headers has type map"),
        ({"value": "string", "timestamp": "bigint"}, "column timestamp has type bigint"),
        ({"value": "string", "topic": "binary"}, "column topic has type binary"),
    ],
)
def test_a_column_of_a_wrong_type_is_named(types: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_columns(types, topic="t", takes_timestamps=True)


def test_a_column_of_times_is_left_out_unless_it_is_asked_for() -> None:
    check_columns({"value": "string", "timestamp": "bigint"}, topic="t", takes_timestamps=False)


def test_without_a_topic_both_ways_to_name_one_are_said() -> None:
    with pytest.raises(InvalidArgumentError, match="neither an option topic nor a column"):
        check_columns({"value": "string"}, topic=None, takes_timestamps=False)


def test_values_come_out_of_arrow_as_records_hold_them() -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    when = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=datetime.UTC)
    batch = pa.record_batch(
        {
            "other": pa.array([1, 2]),
            "value": pa.array(["ü", None]),
            "key": pa.array([b"k", None], pa.large_binary()),
            "timestamp": pa.array([when, None], pa.timestamp("us", tz="UTC")),
            "partition": pa.array([3, None], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": None}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    assert list(rows_of(batch, takes_timestamps=True)) == [
        Row(b"k", "ü".encode(), [("h", None)], None, 3, -1),
        Row(None, None, [], None, None, None),
    ]
    assert [row[5] for row in rows_of(batch, takes_timestamps=False)] == [None, None]


def test_a_header_without_a_key_is_refused() -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": None, "value": b"x"}]], kind)
    batch = pa.record_batch({"value": pa.array([b"v"]), "headers": headers})
    with pytest.raises(InvalidArgumentError, match="column headers holds a header without a key"):
        list(rows_of(batch, takes_timestamps=False))
