"""Decoders are made of schemas in many forms; what is wrong is said at once."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import RAW, decoder, fields_ddl, infer_json

JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "gone"],
    "properties": {
        "id": {"type": "integer"},
        "gone": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["a", "b"]},
        "who": {"$ref": "#/$defs/who"},
        "sums": {"type": "object", "additionalProperties": {"type": "number"}},
        "list": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
    },
    "$defs": {"who": {"type": "object", "properties": {"name": {"type": "string"}}}},
}
DDL = (
    "struct<`id`: bigint, `gone`: string, `at`: timestamp, `kind`: string, "
    "`who`: struct<`name`: string>, `sums`: map<string,double>, `list`: array<boolean>>"
)


def test_a_schema_may_be_a_file_a_text_or_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(JSON_SCHEMA))
    made = [decoder("json", form) for form in (file, str(file), file.read_text(), JSON_SCHEMA)]
    assert {each.ddl for each in made} == {DDL}
    assert made[0].decode([b'{"gone": null}', b'{"id": 1, "gone": null}'])[0].error
    ddl = tmp_path / "schema.ddl"
    ddl.write_text("id bigint")
    assert decoder("json", str(ddl)).ddl == "struct<`id`: bigint>"


def test_a_long_schema_in_one_line_with_a_dot_in_it_is_no_file() -> None:
    fields = [{"name": f"field{number}", "type": "long"} for number in range(20)]
    schema = {"type": "record", "name": "Order", "namespace": "com.shop", "fields": fields}
    assert decoder("avro", json.dumps(schema)) == decoder("avro", schema)


def test_a_decoder_travels() -> None:
    made = decoder("json", JSON_SCHEMA)
    assert pickle.loads(pickle.dumps(made)) == made
    assert RAW.decode([b"x", None]) == [(b"x", None), (None, None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"format": "xml"}, "raw, json, avro, protobuf; not 'xml'"),
        ({"format": "json"}, "need a schema"),
        ({"format": "avro"}, "need a schema"),
        ({"format": "raw", "schema": "a int"}, "neither schema nor framing"),
        ({"format": "json", "schema": "a int", "framing": "single-object"}, "Avro's alone"),
        ({"format": "json", "schema": "a int", "message": "m"}, "no name of a message"),
        ({"format": "json", "schema": "nowhere.json"}, "nowhere.json cannot be read"),
        ({"format": "json", "schema": "{"}, "no JSON"),
        ({"format": "json", "schema": {"type": "array"}}, "does not say the type"),
        ({"format": "json", "schema": {"type": "object"}}, "names no properties"),
        ({"format": "json", "schema": {"properties": {"a": {}}}}, "the type of a"),
        (
            {"format": "json", "schema": {"properties": {"a": {"$ref": "#"}}}},
            "refers to itself",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        decoder(**arguments)


def test_a_schema_is_inferred_from_what_is_there() -> None:
    sample = [
        b'{"id": 1, "n": 1, "in": {"x": null}, "list": []}',
        None,
        b"poison",
        b'{"n": 1.5, "in": {"x": true, "y": "t"}, "list": [{"z": 1}], "empty": {}, "null": null}',
    ]
    found = infer_json(sample)
    assert fields_ddl(found) == (
        "`id`: bigint, `n`: double, `in`: struct<`x`: boolean, `y`: string>, "
        "`list`: array<struct<`z`: bigint>>, `empty`: map<string,string>, `null`: string"
    )
    rows = decoder("json", found).decode(sample)
    assert [row.error is None for row in rows] == [True, True, False, True]


def test_two_types_of_a_field_are_no_schema() -> None:
    with pytest.raises(InvalidArgumentError, match=r"in.x is bigint in some rows and string"):
        infer_json([b'{"in": {"x": 1}}', b'{"in": {"x": "1"}}'])
    with pytest.raises(InvalidArgumentError, match="no value of the sample"):
        infer_json([b"1", None, b"x"])
