"""Owns the decoding of Avro: its schema as types of columns, and values by fastavro.

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
from collections.abc import Callable, Iterator
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    BINARY,
    STRING,
    Array,
    Decimal,
    Field,
    Map,
    Scalar,
    Struct,
    Type,
    struct_of,
)
from moldau.spark.decode.ddl import decimal_of
from moldau.spark.decode.framing import BadRowError
from moldau.spark.decode.registry import Written

_PRIMITIVES: Final = {
    "boolean": Scalar("boolean"),
    "int": Scalar("int"),
    "long": Scalar("bigint"),
    "float": Scalar("float"),
    "double": Scalar("double"),
    "bytes": BINARY,
    "string": STRING,
}
_LOGICAL: Final = {
    ("int", "date"): Scalar("date"),
    ("long", "timestamp-millis"): Scalar("timestamp"),
    ("long", "timestamp-micros"): Scalar("timestamp"),
    ("long", "local-timestamp-millis"): Scalar("timestamp_ntz"),
    ("long", "local-timestamp-micros"): Scalar("timestamp_ntz"),
}
_PYTHON: Final[dict[str, type]] = {
    "boolean": bool,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": dt.date,
    "timestamp": dt.datetime,
    "timestamp_ntz": dt.datetime,
}
_WIDER: Final = (("int", "bigint"), ("float", "double"))
BROKEN: Final = (
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    struct.error,
)
"""What readers of a binary format raise for bytes that are none of it."""


def parse_avro(text: str) -> Any:
    """The schema as fastavro takes it, without logical types that no column has."""
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"the Avro schema is no JSON: {error}", hint="give a file .avsc, or its text"
        ) from None
    try:
        fastavro.parse_schema(found)
        return fastavro.parse_schema(_plainer(found))
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the Avro schema is wrong: {error}") from None


def _parse_written(written: Written) -> Any:
    """Raises BadRowError, since each row may have been written with another schema."""
    import fastavro

    named: dict[str, Any] = {}
    try:
        for text in written.references:
            fastavro.parse_schema(_plainer(json.loads(text)), named_schemas=named)
        return fastavro.parse_schema(_plainer(json.loads(written.content)), named_schemas=named)
    except Exception as error:
        raise BadRowError(f"written with an Avro schema that is wrong: {error}") from None


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


def fingerprint(text: str) -> bytes:
    """As Avro's single-object encoding has it before a value."""
    from fastavro.schema import fingerprint as hashed
    from fastavro.schema import to_parsing_canonical_form

    canonical = to_parsing_canonical_form(json.loads(text))
    return bytes.fromhex(hashed(canonical, "CRC-64-AVRO"))


def _plainer(found: Any) -> Any:
    if isinstance(found, list):
        return [_plainer(item) for item in found]
    if not isinstance(found, dict):
        return found
    kept = {}
    base, logical = found.get("type"), found.get("logicalType")
    is_decimal = logical == "decimal" and base in ("bytes", "fixed")
    known = isinstance(base, str) and ((base, logical) in _LOGICAL or is_decimal)
    for name, value in found.items():
        if name == "logicalType" and not known:
            continue
        kept[name] = _plainer(value) if name in ("type", "fields", "items", "values") else value
    return kept


class _Union:
    """A union of several types, as a struct with one field for each: member0, member1, …"""

    def __init__(self, kinds: list[Type], names: list[str | None]) -> None:
        self.struct = Struct(
            tuple(Field(f"member{place}", kind) for place, kind in enumerate(kinds))
        )
        self._records = {name: place for place, name in enumerate(names) if name is not None}
        self._classes = {
            _class_of(kind): place
            for place, kind in enumerate(kinds)
            if names[place] is None or len(self._records) == 1
        }

    def value(self, found: Any) -> dict[str, Any]:
        if isinstance(found, tuple):
            return {f"member{self._records[found[0]]}": found[1]}
        return {f"member{self._classes[type(found)]}": found}


def _class_of(kind: Type) -> type:
    match kind:
        case Scalar(name):
            return _PYTHON[name]
        case Decimal():
            return decimal.Decimal
        case Array():
            return list
        case Map() | Struct():
            return dict


Change = Callable[[Any], Any]


class AvroReading:
    """A schema that was understood: the types of its columns, and a reader of its values."""

    def __init__(self, text: str) -> None:
        self._parsed = parse_avro(text)
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        kind, _, self._change = self._type(self._parsed, "the root")
        if not isinstance(kind, Struct) or self._parsed.get("type") != "record":
            raise InvalidArgumentError("the Avro schema is of no record: a table has fields")
        self.struct = kind
        self._meanings: dict[str, list[str]] = {}
        for where, meaning in _meanings(self._parsed):
            self._meanings.setdefault(where, []).append(meaning)
        self._writers: dict[Written, Any] = {}

    def _writer(self, written: Written) -> Any:
        """Raises BadRowError if its values would be taken for something else."""
        found = self._writers.get(written)
        if found is None:
            found = _parse_written(written)
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

    def read(self, value: bytes, written: Written | None = None) -> dict[str, Any]:
        """The fields of a value that was written with this schema, or with another one."""
        from fastavro import schemaless_reader
        from fastavro.read import SchemaResolutionError

        writer = self._parsed if written is None else self._writer(written)
        stream = io.BytesIO(value)
        try:
            found = schemaless_reader(
                stream,
                writer,
                None if written is None else self._parsed,
                return_record_name=True,
                return_record_name_override=True,
            )
            left = len(value) - stream.tell()
            if left:
                raise BadRowError(f"not of the Avro schema: {left} bytes are left over")
            result: dict[str, Any] = found if self._change is None else self._change(found)
        except BadRowError:
            raise
        except SchemaResolutionError as error:
            raise BadRowError(f"written with a schema that does not fit: {error}") from None
        except BROKEN as error:
            raise BadRowError(f"not of the Avro schema: {error or type(error).__name__}") from None
        return result

    # -- types

    def _type(self, found: Any, where: str) -> tuple[Type, bool, Change | None]:
        """Also whether it may be null, and how values of it have to be changed."""
        if isinstance(found, list):
            return self._union(found, where)
        if isinstance(found, str):
            if found in _PRIMITIVES:
                return _PRIMITIVES[found], False, None
            if found in self._open:
                raise InvalidArgumentError(
                    f"the Avro schema refers to itself at {where}: tables have no such type"
                )
            if found not in self._named:
                raise InvalidArgumentError(f"the Avro schema has {found} at {where}: no column")
            return self._type(self._named[found], where)
        name = found["type"]
        logical = _LOGICAL.get((name, found.get("logicalType")))
        if logical is not None:
            return logical, False, None
        if found.get("logicalType") == "decimal":
            self._named.setdefault(found.get("name", ""), found)
            return decimal_of(found["precision"], found.get("scale", 0)), False, None
        match name:
            case "record" | "error":
                return self._record(found, where)
            case "enum":
                self._named[found["name"]] = found
                return STRING, False, None
            case "fixed":
                self._named[found["name"]] = found
                if not found["size"]:
                    raise InvalidArgumentError(f"the Avro schema has nothing at {where}")
                return BINARY, False, None
            case "array":
                kind, nullable, change = self._type(found["items"], f"items of {where}")
                return Array(kind, not nullable), False, _for_items(change)
            case "map":
                kind, nullable, change = self._type(found["values"], f"values of {where}")
                return Map(STRING, kind, not nullable), False, _for_values(change)
            case _:
                return self._type(name, where)

    def _record(self, found: Any, where: str) -> tuple[Type, bool, Change | None]:
        name = found["name"]
        self._named[name] = found
        self._open.append(name)
        fields, changes = [], {}
        for item in found["fields"]:
            kind, nullable, change = self._type(item["type"], item["name"])
            fields.append(Field(item["name"], kind, not nullable))
            if change is not None:
                changes[item["name"]] = change
        self._open.pop()
        return struct_of(fields, f"in {where}"), False, _for_fields(changes)

    def _union(self, found: list[Any], where: str) -> tuple[Type, bool, Change | None]:
        branches = [branch for branch in found if branch != "null"]
        nullable = len(branches) < len(found)
        if not branches:
            raise InvalidArgumentError(f"the Avro schema has nothing but null at {where}")
        if len(branches) == 1:
            kind, _, change = self._type(branches[0], where)
            return kind, nullable, _unless_none(change)
        read = [self._type(branch, where) for branch in branches]
        kinds = [kind for kind, _, _ in read]
        for narrow, wide in _WIDER:
            if kinds in ([Scalar(narrow), Scalar(wide)], [Scalar(wide), Scalar(narrow)]):
                return Scalar(wide), nullable, None
        names = [_record_name(branch, self._named) for branch in branches]
        classes = [_class_of(kind) for kind, name in zip(kinds, names, strict=True) if name is None]
        records = [name for name in names if name is not None]
        if any(change is not None for _, _, change in read):
            raise InvalidArgumentError(f"the Avro schema has a union within a union at {where}")
        if len(set(classes)) < len(classes) or (records and dict in classes):
            raise InvalidArgumentError(
                f"the Avro schema has a union at {where} whose values cannot be told apart",
                hint="one of the types that look alike has to go",
            )
        union = _Union(kinds, names)
        return union.struct, nullable, _unless_none(union.value)


def _record_name(branch: Any, named: dict[str, Any]) -> str | None:
    found = named.get(branch) if isinstance(branch, str) else branch
    if isinstance(found, dict) and found.get("type") == "record":
        return str(found["name"])
    return None


def _unless_none(change: Change | None) -> Change | None:
    if change is None:
        return None
    return lambda value: None if value is None else change(value)


def _for_items(change: Change | None) -> Change | None:
    return None if change is None else lambda values: [change(value) for value in values]


def _for_values(change: Change | None) -> Change | None:
    if change is None:
        return None
    return lambda values: {name: change(value) for name, value in values.items()}


def _for_fields(changes: dict[str, Change]) -> Change | None:
    if not changes:
        return None

    def changed(record: dict[str, Any]) -> dict[str, Any]:
        for name, change in changes.items():
            record[name] = change(record[name])
        return record

    return changed
