"""Responsible for Avro: its schema as types of columns, and values by fastavro.

Values hold no names and no types, so bytes of something else may well decode to something. What
can be told is told: bytes that are left over or missing, a branch or symbol that is not there, text
that is no UTF-8. Logical types that Spark has no column for (times of day, durations, nanoseconds)
are read as what they are made of.
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
"""What fastavro makes of their values."""
_WIDER: Final = ({pa.int32(), pa.int64()}, {pa.float32(), pa.float64()})
_BROKEN: Final = (
    *(ValueError, EOFError, LookupError, TypeError, ArithmeticError),
    *(RecursionError, MemoryError, struct.error),
)
"""What readers of a binary format raise for bytes that are none of it."""

Change = Callable[[Any], Any]


class AvroReader:
    """A schema that was understood: the types of its columns, and a reader of its values."""

    def __init__(self, text: str) -> None:
        self._named: dict[str, Any] = {}
        try:
            self._parsed: Any = parse_schema(_plainer(json.loads(text)), named_schemas=self._named)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(
                f"the Avro schema is no JSON: {error}", hint="give a file .avsc, or its text"
            ) from None
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the Avro schema is wrong: {error}") from None
        if not isinstance(self._parsed, dict) or self._parsed["type"] != "record":
            raise InvalidArgumentError("the Avro schema is of no record: a table has fields")
        self._open: list[str] = []
        self.struct, self._change = self._type(self._parsed, "the root")
        self._meanings: dict[str, list[str]] = defaultdict(list)
        for where, meaning in _meanings(self._parsed):
            self._meanings[where].append(meaning)
        self._writers: dict[WriterSchema, Any] = {}

    def read(self, value: bytes, written: WriterSchema | None = None) -> dict[str, Any]:
        """The fields of a value that was written with this schema, or with another one."""
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
            raise BadRowError(f"written with a schema that does not fit: {error}") from None
        except _BROKEN as error:
            raise BadRowError(f"not of the Avro schema: {error or type(error).__name__}") from None
        left = len(value) - stream.tell()
        if left:
            raise BadRowError(f"not of the Avro schema: {left} bytes are left over")
        return result

    def single_object_header(self) -> bytes:
        """What stands before its values then: two fixed bytes, and the schema's fingerprint."""
        canonical = to_parsing_canonical_form(self._parsed)
        return b"\xc3\x01" + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))

    def _writer(self, written: WriterSchema) -> Any:
        """Raises BadRowError if its values would be taken for something else."""
        named: dict[str, Any] = {}
        try:
            for text in (*written.references, written.content):
                found = parse_schema(_plainer(json.loads(text)), named_schemas=named)
        except Exception as error:
            # Each row may have been written with another schema.
            raise BadRowError(f"written with an Avro schema that is wrong: {error}") from None
        for where, meaning in _meanings(found):
            # A number of days is read as one of microseconds, without a word.
            expected = self._meanings.get(where, [meaning])
            if meaning not in expected:
                raise BadRowError(
                    f"written with a schema that does not fit: {where.lstrip('.')} is "
                    f"{meaning or 'of no logical type'}, not {expected[0] or 'of none'}"
                )
        self._writers[written] = found
        return found

    # -- types

    def _type(self, found: Any, where: str) -> tuple[Any, Change | None]:
        """Also how values of it have to be changed."""
        if isinstance(found, list):
            return self._union([branch for branch in found if branch != "null"], where)
        if isinstance(found, str):
            if found in _PRIMITIVES:
                return _PRIMITIVES[found], None
            if found in self._open or found not in self._named:
                told = "refers to itself" if found in self._open else f"has nothing but {found}"
                raise InvalidArgumentError(
                    f"the Avro schema {told} at {where}: tables have no such type"
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
                    f"the Avro schema has no decimal of Spark's at {where}: {error}"
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
        """Of several types: a struct with one field for each, member0, member1, …"""
        if not branches:
            raise InvalidArgumentError(f"the Avro schema has nothing but null at {where}")
        kinds, changes = zip(*(self._type(branch, where) for branch in branches), strict=True)
        if len(branches) == 1:
            (change,) = changes
            return kinds[0], change and (lambda value: None if value is None else change(value))
        if len(kinds) == 2 and set(kinds) in _WIDER:
            return max(kinds, key=lambda kind: kind.bit_width), None
        if any(changes):
            raise InvalidArgumentError(f"the Avro schema has a union within a union at {where}")
        # fastavro tells the name of a record where there are several; else its class tells all.
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
                f"the Avro schema has a union at {where} whose values cannot be told apart",
                hint="one of the types that look alike has to go",
            )
        names = {key: f"member{place}" for place, key in enumerate(members)}

        def told_apart(value: Any) -> dict[str, Any] | None:
            if value is None:
                return None
            key, inner = value if isinstance(value, tuple) else (type(value), value)
            return {names[key]: inner}

        return pa.struct([*zip(names.values(), kinds, strict=True)]), told_apart


def _plainer(found: Any) -> Any:
    """Without logical types that no column has."""
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
    """The logical types of each place in a schema, by the names of the fields on the way.

    Types that are named again, further on, are left out: they stand at their first place.
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
