"""Owns the way from a JSON Schema to the types of columns.

Types, `properties`, `required`, `items`, `additionalProperties`, `format` (date, date-time), `enum`
and references within the file are read. Ranges, lengths and patterns are not checked: a row that
breaks them is no bad row. What says nothing about the type of a column is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    STRING,
    Array,
    Field,
    Map,
    Scalar,
    Struct,
    Type,
    struct_of,
)

_DEPTH_MAX: Final = 32
_PLAIN: Final = {"integer": "bigint", "number": "double", "boolean": "boolean"}
_FORMATS: Final = {"date-time": "timestamp", "date": "date"}


def from_json_schema(schema: Mapping[str, Any]) -> Struct:
    """The fields of an object; InvalidArgumentError says where there is something else."""
    kind, _ = _Reading(schema).type(schema, "the root", 0)
    if not isinstance(kind, Struct):
        raise InvalidArgumentError(
            "the JSON Schema does not say that values are objects with properties"
        )
    return kind


class _Reading:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def type(self, found: Any, where: str, depth: int) -> tuple[Type, bool]:
        """And whether it may be null."""
        if not isinstance(found, Mapping):
            raise InvalidArgumentError(f"the JSON Schema does not say the type of {where}")
        if depth > _DEPTH_MAX:
            raise InvalidArgumentError(
                f"the JSON Schema refers to itself at {where}: tables have no such type"
            )
        if "$ref" in found:
            return self.type(self._target(str(found["$ref"])), where, depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in found:
                return self._either(found[word], where, depth)
        names = self._names(found, where)
        nullable = "null" in names
        left = [name for name in names if name != "null"]
        if left == ["integer", "number"] or left == ["number", "integer"]:
            left = ["number"]
        if len(left) != 1:
            raise InvalidArgumentError(f"the JSON Schema does not give one type for {where}")
        return self._one(left[0], found, where, depth), nullable

    def _target(self, ref: str) -> Any:
        if not ref.startswith("#"):
            raise InvalidArgumentError(f"the JSON Schema refers to another file: {ref}")
        at: Any = self._root
        for part in ref[1:].strip("/").split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if part and (not isinstance(at, Mapping) or part not in at):
                raise InvalidArgumentError(f"the JSON Schema refers to {ref}, which is not there")
            at = at[part] if part else at
        return at

    def _either(self, choices: Any, where: str, depth: int) -> tuple[Type, bool]:
        """Only `something or null` is a column."""
        some = [choice for choice in choices if choice != {"type": "null"}]
        if len(some) != 1:
            raise InvalidArgumentError(f"the JSON Schema does not give one type for {where}")
        kind, nullable = self.type(some[0], where, depth + 1)
        return kind, nullable or len(some) < len(choices)

    def _names(self, found: Mapping[str, Any], where: str) -> list[str]:
        said = found.get("type")
        if said is None and "properties" in found:
            return ["object"]
        if said is None and "enum" in found:
            values = found["enum"]
            if all(value is None or isinstance(value, str) for value in values):
                return ["string", "null"] if None in values else ["string"]
        if isinstance(said, str):
            return [said]
        if isinstance(said, list) and all(isinstance(name, str) for name in said):
            return said
        raise InvalidArgumentError(f"the JSON Schema does not say the type of {where}")

    def _one(self, name: str, found: Mapping[str, Any], where: str, depth: int) -> Type:
        if name in _PLAIN:
            return Scalar(_PLAIN[name])
        if name == "string":
            if found.get("contentEncoding") == "base64":
                return Scalar("binary")
            return Scalar(_FORMATS[found["format"]]) if found.get("format") in _FORMATS else STRING
        if name == "array":
            element, nullable = self.type(found.get("items"), f"items of {where}", depth + 1)
            return Array(element, not nullable)
        if name == "object":
            return self._object(found, where, depth)
        raise InvalidArgumentError(f"the JSON Schema gives {where} the type {name}")

    def _object(self, found: Mapping[str, Any], where: str, depth: int) -> Type:
        properties = found.get("properties")
        if not properties:
            more = found.get("additionalProperties")
            if not isinstance(more, Mapping):
                raise InvalidArgumentError(f"the JSON Schema names no properties of {where}")
            value, nullable = self.type(more, f"values of {where}", depth + 1)
            return Map(STRING, value, not nullable)
        required = found.get("required", [])
        fields = []
        for name, inner in properties.items():
            kind, nullable = self.type(inner, name, depth + 1)
            fields.append(Field(name, kind, name in required and not nullable))
        return struct_of(fields, f"in {where}")
