"""Avro by its schema: what it becomes, what is bad, what precedes it."""

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import decoder

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "was", "type": ["null", "State"]},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "either", "type": ["null", "long", "string"]},
        {"name": "wide", "type": ["int", "long"]},
        {
            "name": "who",
            "type": [
                {
                    "type": "record",
                    "name": "Person",
                    "fields": [{"name": "name", "type": "string"}],
                },
                {"type": "record", "name": "Firm", "fields": [{"name": "number", "type": "int"}]},
            ],
        },
    ],
}
VALUE: dict[str, Any] = {
    "id": 1,
    "note": None,
    "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "price": Decimal("12.50"),
    "state": "DONE",
    "was": "NEW",
    "noon": dt.time(12),
    "tags": {"a": [1, 2]},
    "either": "x",
    "wide": 2**40,
    "who": ("shop.Firm", {"number": 7}),
}


def encoded(value: dict[str, Any] = VALUE) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), value)
    return out.getvalue()


def test_a_record_becomes_a_row_with_its_types() -> None:
    made = decoder("avro", json.dumps(SCHEMA))
    assert str(made.arrow_type) == (
        "struct<id: int64, note: string, at: timestamp[us, tz=UTC], price: decimal128(6, 2), "
        "state: string, was: string, noon: int32, tags: map<string, list<element: int32>>, "
        "either: struct<member0: int64, member1: string>, wide: int64, "
        "who: struct<member0: struct<name: string>, member1: struct<number: int32>>>"
    )
    values, errors = made.arrays([encoded(), None])
    assert errors.to_pylist() == [None, None]
    row, nothing = values.to_pylist()
    assert nothing is None
    assert row == VALUE | {
        "noon": 12 * 3600 * 1000,
        "tags": [("a", [1, 2])],
        "either": {"member0": None, "member1": "x"},
        "who": {"member0": None, "member1": {"number": 7}},
    }


def test_bytes_that_are_missing_or_left_over_are_bad() -> None:
    made = decoder("avro", SCHEMA)
    whole = encoded()
    rows = made.decode([whole + b"\0", whole[:-1], b"", whole])
    assert [row.error is None for row in rows] == [False, False, False, True]
    assert rows[0].error == "does not match the Avro schema: 1 extra bytes"


@given(junk=st.binary(max_size=80))
def test_no_bytes_make_it_raise(junk: bytes) -> None:
    made = decoder("avro", json.dumps(SCHEMA))
    values, errors = made.arrays([junk, encoded()])
    assert (values[0].as_py() is None) != (errors[0].as_py() is None)
    assert values[1].as_py()["id"] == 1


@given(at=st.integers(0, 60), byte=st.integers(0, 255))
def test_a_byte_that_flipped_never_fails_the_batch(at: int, byte: int) -> None:
    changed = bytearray(encoded())
    changed[at % len(changed)] = byte
    values, errors = decoder("avro", json.dumps(SCHEMA)).arrays([bytes(changed)])
    assert (values[0].as_py() is None) != (errors[0].as_py() is None)


def test_headers_of_confluent_and_of_single_objects_are_taken_off(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    framed = b"\0\0\0\0\x07" + encoded()
    (tmp_path / "7.avsc").write_text(json.dumps(SCHEMA))
    made = decoder("avro", str(file), framing="confluent", registry=str(tmp_path))
    good, bad = made.decode([framed, b"\1" + framed])
    assert good.value["id"] == 1
    assert bad.error == "the value has no header of Confluent's wire format"

    single = decoder(
        "avro",
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}',
        framing="single-object",
    )
    # The schema's CRC-64-AVRO, of its canonical form, lowest byte first.
    mark = b"\xc3\x01" + bytes.fromhex("3715a01bf361b035")
    good, other, none = single.decode([mark + b"\2", b"\xc3\x01" + b"x" * 8 + b"\2", b"\2"])
    assert good.value == {"a": 1}
    assert "another schema" in (other.error or "")
    assert "no header" in (none.error or "")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not JSON"),
        ('{"type": "nonsense"}', "invalid"),
        ('"long"', "must be a record"),
        ('{"type": "record", "name": "R", "fields": []}', "no fields"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "itself",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]}', "null at n"),
        (
            '{"type": "record", "name": "R", "fields": '
            '[{"name": "u", "type": ["long", "int", "string"]}]}',
            "distinguished",
        ),
    ],
)
def test_schemas_that_are_no_table_are_refused(schema: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        decoder("avro", schema + "\n")
