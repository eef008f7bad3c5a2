"""JSON is decoded strictly: what is not of the schema is a bad row, and no row is lost."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import Decoder, decoder, infer_json

SCHEMA = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("name", pa.string()),
        ("price", pa.decimal128(5, 2)),
        ("ratio", pa.float32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("more", pa.map_(pa.string(), pa.int32())),
        ("inner", pa.struct([pa.field("x", pa.int32(), nullable=False)])),
    ]
)


@pytest.fixture(scope="module")
def strict() -> Decoder:
    return decoder("json", SCHEMA)


def test_values_of_the_schema_are_decoded(strict: Decoder) -> None:
    value = {
        "id": 1,
        "small": -128,
        "name": "ü",
        "price": 1.5,
        "ratio": 2,
        "at": "2026-01-01T12:00:00+02:00",
        "day": "2026-01-01",
        "tags": ["a", None],
        "more": {"k": 1},
        "inner": {"x": 7, "unknown": []},
        "unknown": {"deep": 1},
    }
    (row,) = strict.decode([json.dumps(value).encode()])
    assert row.error is None
    assert row.value == {
        "id": 1,
        "small": -128,
        "name": "ü",
        "price": Decimal("1.5"),
        "ratio": 2.0,
        "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        "day": dt.date(2026, 1, 1),
        "tags": ["a", None],
        "more": {"k": 1},
        "inner": {"x": 7},
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b"no json", "not JSON"),
        (b'{"id": 1} {"id": 2}', "trailing"),
        (b'{"id": 1}x', "trailing"),
        (b'{"id": NaN}', "not JSON"),
        (b'{"id": 1, "name": "\xff"}', "not JSON"),
        (b"null", "got `null`"),
        (b"[]", "got `array`"),
        (b"{}", "missing required field `id`"),
        (b'{"id": null}', "got `null`"),
        (b'{"id": "1"}', "got `str`"),
        (b'{"id": 1.0}', "got `float`"),
        (b'{"id": true}', "got `bool`"),
        (b'{"id": 9223372036854775808}', "<= 9223372036854775807"),
        (b'{"id": 1, "small": 128}', "<= 127"),
        (b'{"id": 1, "name": 1}', "got `int`"),
        (b'{"id": 1, "ratio": 1e300}', "<="),
        (b'{"id": 1, "at": 1700000000}', "got `int`"),
        (b'{"id": 1, "at": "yesterday"}', "Invalid RFC3339"),
        (b'{"id": 1, "inner": {}}', "missing required field `x`"),
        (b'{"id": 1, "more": {"k": "v"}}', "got `str`"),
        (b'{"id": 1, "z": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_not_of_the_schema_is_bad(strict: Decoder, value: bytes, reason: str) -> None:
    (row,) = strict.decode([value])
    assert row.value is None
    assert row.error is not None
    assert reason in row.error


@pytest.mark.parametrize("price", ["1.234", "12345", '"NaN"', '"Infinity"'])
def test_a_number_that_no_column_holds_is_bad_and_not_rounded(strict: Decoder, price: str) -> None:
    values, errors = strict.arrays(
        [b'{"id": 1}', b'{"id": 2, "price": %s}' % price.encode(), b'{"id": 3, "price": 1}']
    )
    assert [row and row["id"] for row in values.to_pylist()] == [1, None, 3]
    assert [error is None for error in errors.to_pylist()] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("9999-12-31T23:59:59.999999Z", 253402300799999999),
        ("0001-01-01T00:00:00+10:00", None),
        ("9999-12-31T23:59:59-10:00", None),
    ],
)
def test_moments_are_kept_to_the_microsecond(
    strict: Decoder, text: str, micros: int | None
) -> None:
    values, errors = strict.arrays([b'{"id": 1, "at": "%s"}' % text.encode()])
    assert values.field("at").cast(pa.int64()).to_pylist() == [micros]
    assert (errors[0].as_py() is None) == (micros is not None)


def test_a_tombstone_is_no_bad_row(strict: Decoder) -> None:
    assert strict.decode([None]) == [(None, None)]


def test_unknown_fields_are_counted_wherever_they_are() -> None:
    item = pa.struct([("x", pa.int32())])
    fields = [("id", pa.int64()), ("in", pa.list_(item)), ("by", pa.map_(pa.string(), item))]
    found = decoder("json", pa.struct(fields)).unknown_fields(
        [
            b'{"id": 1, "in": [{"x": 1}], "by": {"k": {"x": 1}}}',
            b'{"it": 1, "in": [{"y": 1}, {"y": {"z": 2}}]}',
            b'{"by": {"k": {"x": 1, "y": 2}}, "it": null}',
            *(None, b"poison", b"[]"),
        ]
    )
    assert found == {"it": 2, "in[].y": 2, "by{}.y": 1}


def test_maps_of_other_keys_than_texts_are_no_json() -> None:
    with pytest.raises(InvalidArgumentError, match="keys are not strings"):
        decoder("json", pa.struct([("m", pa.map_(pa.int32(), pa.string()))]))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("id"), inner),
    max_leaves=10,
)
ROWS = st.lists(
    st.none() | st.binary() | ANYTHING.map(lambda value: json.dumps(value).encode()), max_size=8
)


@given(rows=ROWS)
def test_every_row_is_good_or_bad_or_a_tombstone(rows: list[bytes | None]) -> None:
    strict = decoder("json", SCHEMA)
    decoded = strict.decode(rows)
    assert len(decoded) == len(rows)
    for given_value, row in zip(rows, decoded, strict=True):
        if given_value is None:
            assert row == (None, None)
        else:
            assert (row.value is None) != (row.error is None)
            if row.error is None:
                assert json.loads(given_value)["id"] == row.value["id"]


@given(rows=ROWS)
def test_arrow_batches_are_split_without_a_loss(rows: list[Any]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array(rows, pa.binary()), "offset": pa.array(range(len(rows)), pa.int64())}
    )
    good, bad = decoder("json", SCHEMA).split(batch)
    assert sorted([*good["offset"].to_pylist(), *bad["offset"].to_pylist()]) == [*range(len(rows))]
    assert all(rows[row["offset"]] == row["raw"] and row["error"] for row in bad.to_pylist())
    for row in good.to_pylist():
        assert (row["value"] is None) == (rows[row["offset"]] is None)


def test_a_schema_is_inferred_from_what_is_there() -> None:
    sample = [
        b'{"id": 1, "n": 1, "in": {"x": null}, "list": []}',
        None,
        b"poison",
        b'{"n": 1.5, "in": {"x": true, "y": "t"}, "list": [{"z": 1}], "empty": {}, "null": null}',
    ]
    found = infer_json(sample)
    assert str(found) == (
        "struct<id: int64, n: double, in: struct<x: bool, y: string>, "
        "list: list<element: struct<z: int64>>, empty: map<string, string>, null: string>"
    )
    rows = decoder("json", found).decode(sample)
    assert [row.error is None for row in rows] == [True, True, False, True]


def test_two_types_of_a_field_are_no_schema() -> None:
    with pytest.raises(InvalidArgumentError, match=r"in.x is a number in some rows and a string"):
        infer_json([b'{"in": {"x": 1}}', b'{"in": {"x": "1"}}'])
    with pytest.raises(InvalidArgumentError, match="no value of the sample"):
        infer_json([b"1", None, b"x"])
