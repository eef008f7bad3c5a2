"""Converts a JSON Schema to column types.

Supports types, `properties`, `required`, `items`, `additionalProperties`, `format` (date,
date-time), `enum` and references within the file. Ranges, lengths and patterns are not checked. A
schema without a definite type for a column is rejected.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import TIMESTAMP, list_of, map_of, struct_of

_DEPTH_MAX: Final = 32
_PLAIN: Final = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS: Final = {"date-time": TIMESTAMP, "date": pa.date32()}


def from_json_schema(schema: Mapping[str, Any]) -> Any:
    """The fields of an object. Raises InvalidArgumentError."""
    kind, _ = _type(schema, schema, "the root", 0)
    if not pa.types.is_struct(kind):
        raise InvalidArgumentError("the root of the JSON Schema must be an object with properties")
    return kind


def _type(root: Mapping[str, Any], found: Any, where: str, depth: int) -> tuple[Any, bool]:
    """The type, and whether it may be null."""
    if not isinstance(found, Mapping):
        raise InvalidArgumentError(f"the JSON Schema has no type for {where}")
    if depth > _DEPTH_MAX:
        raise InvalidArgumentError(
            f"the JSON Schema refers to itself at {where}: tables have no such type"
        )
    if "$ref" in found:
        return _type(root, _target(root, str(found["$ref"])), where, depth + 1)
    choices = found.get("anyOf", found.get("oneOf"))
    if choices is not None:
        # A union is supported only with null.
        some = [choice for choice in choices if choice != {"type": "null"}]
        if len(some) == 1:
            kind, nullable = _type(root, some[0], where, depth + 1)
            return kind, nullable or len(some) < len(choices)
        names = []
    else:
        names = _names(found, where)
    left = {name for name in names if name != "null"}
    if left == {"integer", "number"}:
        left = {"number"}
    if len(left) != 1:
        raise InvalidArgumentError(f"the JSON Schema must have one type for {where}")
    return _one(root, left.pop(), found, where, depth), "null" in names


def _target(root: Mapping[str, Any], ref: str) -> Any:
    if not ref.startswith("#"):
        raise InvalidArgumentError(f"the JSON Schema refers to another file: {ref}")
    at: Any = root
    for part in filter(None, ref[1:].split("/")):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(at, Mapping) or part not in at:
            raise InvalidArgumentError(f"the JSON Schema refers to {ref}, which does not exist")
        at = at[part]
    return at


def _names(found: Mapping[str, Any], where: str) -> list[str]:
    given = found.get("type")
    if given is None and "properties" in found:
        given = "object"
    if given is None and "enum" in found:
        values = found["enum"]
        if all(value is None or isinstance(value, str) for value in values):
            return ["string", "null"] if None in values else ["string"]
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"the JSON Schema has no type for {where}")
    return names


def _one(
    root: Mapping[str, Any], name: str, found: Mapping[str, Any], where: str, depth: int
) -> Any:
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "string":
        if found.get("contentEncoding") == "base64":
            return pa.binary()
        return _FORMATS.get(str(found.get("format")), pa.string())
    if name == "array":
        element, nullable = _type(root, found.get("items"), f"items of {where}", depth + 1)
        return list_of(element, nullable=nullable)
    if name != "object":
        raise InvalidArgumentError(f"unknown type {name} of {where} in the JSON Schema")
    if not found.get("properties"):
        more = found.get("additionalProperties")
        if not isinstance(more, Mapping):
            raise InvalidArgumentError(f"the JSON Schema has no properties of {where}")
        value, nullable = _type(root, more, f"values of {where}", depth + 1)
        return map_of(pa.string(), value, nullable=nullable)
    required = found.get("required", [])
    fields = []
    for inner, kind in found["properties"].items():
        made, nullable = _type(root, kind, inner, depth + 1)
        fields.append(pa.field(inner, made, nullable or inner not in required))
    return struct_of(fields, f"in {where}")
