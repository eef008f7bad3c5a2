"""Avro: converts schemas to column types, and reads values by fastavro.

Values contain neither names nor types, so other bytes may decode without an error. Detected are
extra and missing bytes, unknown branches and symbols, and text that is not UTF-8. Logical types
without a Spark type (times of day, durations, nanoseconds) are read as their base type.
"""

import datetime as dt
import decimal
import io
import json
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.read import SchemaResolutionError
from fastavro.schema import (
    SchemaParseException,
    UnknownType,
    fingerprint,
    to_parsing_canonical_form,
)

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import TIMESTAMP, list_of, map_of, struct_of
from moldau.spark.decode.registry import BadRowError, WriterSchema

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_CLASSES: Final[dict[Any, type]] = {
    pa.bool_(): bool,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): dt.date,
    **dict.fromkeys((pa.int32(), pa.int64()), int),
    **dict.fromkeys((pa.float32(), pa.float64()), float),
    **dict.fromkeys((TIMESTAMP, pa.timestamp("us")), dt.datetime),
}
"""The Python types that fastavro returns."""
_WIDER: Final = ({pa.int32(), pa.int64()}, {pa.float32(), pa.float64()})
_BROKEN: Final = (
    *(ValueError, EOFError, LookupError, TypeError, ArithmeticError),
    *(RecursionError, MemoryError, struct.error),
)
"""What fastavro raises for corrupt bytes."""

Change = Callable[[Any], Any]


class AvroReader:
    """A parsed schema: its column types, and a reader of values."""

    def __init__(self, text: str) -> None:
        self._named: dict[str, Any] = {}
        try:
            self._parsed: Any = parse_schema(_plainer(json.loads(text)), named_schemas=self._named)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(
                f"the Avro schema is not JSON: {error}", hint="give an .avsc file, or its text"
            ) from None
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the Avro schema is invalid: {error}") from None
        if not isinstance(self._parsed, dict) or self._parsed["type"] != "record":
            raise InvalidArgumentError("the Avro schema must be a record")
        self._open: list[str] = []
        self.struct, self._change = self._type(self._parsed, "the root")
        self._meanings: dict[str, list[str]] = defaultdict(list)
        for where, meaning in _meanings(self._parsed):
            self._meanings[where].append(meaning)
        self._writers: dict[WriterSchema, Any] = {}

    def read(self, value: bytes, written: WriterSchema | None = None) -> dict[str, Any]:
        """The fields of a value, written with this schema or with the schema `written`."""
        writer, reader = self._parsed, None
        if written is not None:
            writer, reader = self._writers.get(written) or self._writer(written), self._parsed
        stream = io.BytesIO(value)
        try:
            found: Any = schemaless_reader(
                stream,
                writer,
                reader,
                return_record_name=True,
                return_record_name_override=True,
            )
            result: dict[str, Any] = found if self._change is None else self._change(found)
        except SchemaResolutionError as error:
            raise BadRowError(f"written with an incompatible schema: {error}") from None
        except _BROKEN as error:
            reason = error or type(error).__name__
            raise BadRowError(f"does not match the Avro schema: {reason}") from None
        left = len(value) - stream.tell()
        if left:
            raise BadRowError(f"does not match the Avro schema: {left} extra bytes")
        return result

    def single_object_header(self) -> bytes:
        """The header of the single-object encoding: two fixed bytes, and the fingerprint."""
        canonical = to_parsing_canonical_form(self._parsed)
        return b"\xc3\x01" + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))

    def _writer(self, written: WriterSchema) -> Any:
        """Parses a writer schema. Raises BadRowError if its values would be misread."""
        named: dict[str, Any] = {}
        try:
            for text in (*written.references, written.content):
                found = parse_schema(_plainer(json.loads(text)), named_schemas=named)
        except Exception as error:
            # Only this row is bad: others may have other schemas.
            raise BadRowError(f"written with an invalid Avro schema: {error}") from None
        for where, meaning in _meanings(found):
            # Otherwise a number of days would silently be read as one of microseconds.
            expected = self._meanings.get(where, [meaning])
            if meaning not in expected:
                raise BadRowError(
                    f"written with an incompatible schema: the logical type of "
                    f"{where.lstrip('.')} is {meaning or 'none'}, not {expected[0] or 'none'}"
                )
        self._writers[written] = found
        return found

    # -- types

    def _type(self, found: Any, where: str) -> tuple[Any, Change | None]:
        """The column type, and the conversion of its values."""
        if isinstance(found, list):
            return self._union([branch for branch in found if branch != "null"], where)
        if isinstance(found, str):
            if found in _PRIMITIVES:
                return _PRIMITIVES[found], None
            if found in self._open or found not in self._named:
                problem = "refers to itself" if found in self._open else f"has only {found}"
                raise InvalidArgumentError(
                    f"the Avro schema {problem} at {where}: tables have no such type"
                )
            return self._type(self._named[found], where)
        name, logical = found["type"], found.get("logicalType")
        if (name, logical) in _LOGICAL:
            return _LOGICAL[name, logical], None
        if logical == "decimal":
            try:
                return pa.decimal128(found["precision"], found.get("scale", 0)), None
            except ValueError as error:
                raise InvalidArgumentError(
                    f"the Avro schema has a decimal that Spark does not support at {where}: {error}"
                ) from None
        if name in ("record", "error"):
            return self._record(found, where)
        if name in ("enum", "fixed"):
            return pa.string() if name == "enum" else pa.binary(), None
        if name == "array":
            kind, change = self._type(found["items"], f"items of {where}")
            return list_of(kind), change and (lambda values: [change(each) for each in values])
        if name == "map":
            kind, of_value = self._type(found["values"], f"values of {where}")
            return map_of(pa.string(), kind), of_value and (
                lambda values: {key: of_value(value) for key, value in values.items()}
            )
        return self._type(name, where)

    def _record(self, found: Any, where: str) -> tuple[Any, Change | None]:
        self._open.append(found["name"])
        fields: list[Any] = []
        changes: dict[str, Change] = {}
        for item in found["fields"]:
            kind, change = self._type(item["type"], item["name"])
            fields.append(pa.field(item["name"], kind))
            if change is not None:
                changes[item["name"]] = change
        self._open.pop()

        def changed(record: dict[str, Any]) -> dict[str, Any]:
            for name, change in changes.items():
                record[name] = change(record[name])
            return record

        return struct_of(fields, f"in {where}"), changed if changes else None

    def _union(self, branches: list[Any], where: str) -> tuple[Any, Change | None]:
        """Several types become a struct with one field for each: member0, member1, …"""
        if not branches:
            raise InvalidArgumentError(f"the Avro schema has only null at {where}")
        kinds, changes = zip(*(self._type(branch, where) for branch in branches), strict=True)
        if len(branches) == 1:
            (change,) = changes
            return kinds[0], change and (lambda value: None if value is None else change(value))
        if len(kinds) == 2 and set(kinds) in _WIDER:
            return max(kinds, key=lambda kind: kind.bit_width), None
        if any(changes):
            raise InvalidArgumentError(f"the Avro schema has a union within a union at {where}")
        # fastavro returns the name of a record if there are several; otherwise the Python type
        # identifies the branch.
        known = [self._named.get(each) if isinstance(each, str) else each for each in branches]
        records = [each["name"] if each and each["type"] == "record" else None for each in known]
        several = len(records) - records.count(None) > 1
        members: dict[Any, Any] = {}
        for name, kind in zip(records, kinds, strict=True):
            is_decimal, is_list = pa.types.is_decimal(kind), pa.types.is_list(kind)
            cls = decimal.Decimal if is_decimal else list if is_list else _CLASSES.get(kind, dict)
            members[name if name and several else cls] = kind
        if len(members) < len(kinds):
            raise InvalidArgumentError(
                f"the Avro schema has a union at {where} whose values cannot be distinguished",
                hint="remove one of the similar types",
            )
        names = {key: f"member{place}" for place, key in enumerate(members)}

        def as_struct(value: Any) -> dict[str, Any] | None:
            if value is None:
                return None
            key, inner = value if isinstance(value, tuple) else (type(value), value)
            return {names[key]: inner}

        return pa.struct([*zip(names.values(), kinds, strict=True)]), as_struct


def _plainer(found: Any) -> Any:
    """Removes logical types without a column type."""
    if isinstance(found, list):
        return [_plainer(item) for item in found]
    if not isinstance(found, dict):
        return found
    base, logical = found.get("type"), found.get("logicalType")
    is_decimal = logical == "decimal" and base in ("bytes", "fixed")
    is_known = isinstance(base, str) and ((base, logical) in _LOGICAL or is_decimal)
    return {
        name: _plainer(value) if name in ("type", "fields", "items", "values") else value
        for name, value in found.items()
        if name != "logicalType" or is_known
    }


def _meanings(found: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The logical type of each field path in a schema.

    References to named types are left out: only their definition counts.
    """
    if isinstance(found, list):
        for branch in found:
            yield from _meanings(branch, where)
    if isinstance(found, str) and found in _PRIMITIVES:
        yield where, ""
    if not isinstance(found, dict):
        return
    for field in found.get("fields", ()):
        yield from _meanings(field["type"], f"{where}.{field['name']}")
    for inner in ("items", "values"):
        yield from _meanings(found.get(inner), f"{where}[]")
    if isinstance(found.get("type"), dict | list):
        yield from _meanings(found["type"], where)
        return
    logical = str(found.get("logicalType", ""))
    yield where, logical.replace("-millis", "").replace("-micros", "")
