"""Decoders are made of schemas in many forms; what is wrong is said at once."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import RAW, decoder

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
STRUCT = (
    "struct<id: int64 not null, gone: string, at: timestamp[us, tz=UTC], kind: string, "
    "who: struct<name: string>, sums: map<string, double>, list: list<element: bool>>"
)
ID = {"properties": {"id": {"type": "integer"}}}


def test_a_schema_may_be_a_file_a_text_or_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(JSON_SCHEMA))
    made = [decoder("json", form) for form in (file, str(file), file.read_text(), JSON_SCHEMA)]
    assert {str(each.struct) for each in made} == {STRUCT}
    bad, good = made[0].decode([b'{"gone": null}', b'{"id": 1, "gone": null}'])
    assert bad.error
    assert good.value == {"id": 1, "gone": None}
    odd = tmp_path / "a schema.json"
    odd.write_text(json.dumps(ID))
    assert str(decoder("json", str(odd)).struct) == "struct<id: int64>"


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
        ({"format": "xml"}, "raw, json, avro, protobuf, not 'xml'"),
        ({"format": "json"}, "need a schema"),
        ({"format": "avro"}, "need a schema"),
        ({"format": "raw", "schema": "a int"}, "neither schema nor framing"),
        ({"format": "json", "schema": ID, "framing": "single-object"}, "only for Avro"),
        ({"format": "json", "schema": ID, "message": "m"}, "a message name is only for Protobuf"),
        ({"format": "json", "schema": "nowhere.json"}, "cannot read the schema nowhere.json"),
        ({"format": "json", "schema": "{"}, "not JSON"),
        ({"format": "json", "schema": pa.struct([])}, "no fields"),
        ({"format": "json", "schema": pa.struct([("a", pa.time32("s"))])}, "time32.* at a, which"),
        ({"format": "json", "schema": {"type": "array"}}, "has no type for"),
        ({"format": "json", "schema": {"type": "object"}}, "has no properties"),
        ({"format": "json", "schema": {"properties": {"a": {}}}}, "no type for a"),
        (
            {"format": "json", "schema": {"properties": {"a": {"$ref": "#"}}}},
            "refers to itself",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        decoder(**arguments)
