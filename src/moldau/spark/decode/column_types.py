"""Owns the types of decoded values: what Spark's SQL, Arrow and all formats have in common.

Plain data, without Spark. A field that is required must be there and not be null, or the row is a
bad one; in the table itself every column may be null, since a tombstone has no fields at all.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError

SCALARS: Final = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
WHOLE_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DECIMAL_PRECISION_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class Scalar:
    """One of SCALARS, by the name that Spark's SQL has for it."""

    name: str


@dataclass(frozen=True, slots=True)
class Decimal:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Array:
    element: "Type"
    element_required: bool = False


@dataclass(frozen=True, slots=True)
class Map:
    key: "Type"
    value: "Type"
    value_required: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: "Type"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]


Type = Scalar | Decimal | Array | Map | Struct

STRING: Final = Scalar("string")
BINARY: Final = Scalar("binary")


def struct_of(fields: list[Field], where: str) -> Struct:
    """With checked names. Spark tells columns apart without regard to the case of letters."""
    if not fields:
        raise InvalidArgumentError(f"the schema has no fields {where}".rstrip())
    seen: set[str] = set()
    for field in fields:
        if not field.name:
            raise InvalidArgumentError(f"the schema has a field without a name {where}".rstrip())
        if field.name.lower() in seen:
            raise InvalidArgumentError(
                f"the schema has the field {field.name} twice {where}".rstrip(),
                hint="names that differ in the case of letters only are the same to Spark",
            )
        seen.add(field.name.lower())
    return Struct(tuple(fields))


def with_new_fields(known: Type, seen: Type) -> Type:
    """With the fields of `seen` that `known` does not have; what both have stays as it is."""
    match known, seen:
        case Struct(), Struct():
            theirs = {field.name.lower(): field.type for field in seen.fields}
            mine = {field.name.lower() for field in known.fields}
            fields = [
                replace(field, type=with_new_fields(field.type, theirs[field.name.lower()]))
                if field.name.lower() in theirs
                else field
                for field in known.fields
            ]
            return Struct((*fields, *(f for f in seen.fields if f.name.lower() not in mine)))
        case Array(), Array():
            return replace(known, element=with_new_fields(known.element, seen.element))
        case Map(), Map():
            return replace(known, value=with_new_fields(known.value, seen.value))
        case _:
            return known


def ddl_of(kind: Type, *, requirements: bool = False) -> str:
    """As Spark's SQL writes it; `requirements` adds NOT NULL, which `parse_ddl` reads again."""
    match kind:
        case Scalar():
            return kind.name
        case Decimal():
            return f"decimal({kind.precision},{kind.scale})"
        case Array():
            return f"array<{ddl_of(kind.element, requirements=requirements)}>"
        case Map():
            key = ddl_of(kind.key, requirements=requirements)
            return f"map<{key},{ddl_of(kind.value, requirements=requirements)}>"
        case Struct():
            return f"struct<{fields_ddl(kind, requirements=requirements)}>"


def fields_ddl(kind: Struct, *, requirements: bool = False) -> str:
    """The fields alone: the schema of a table."""
    parts = []
    for field in kind.fields:
        name = field.name.replace("`", "``")
        needed = " NOT NULL" if requirements and field.required else ""
        parts.append(f"`{name}`: {ddl_of(field.type, requirements=requirements)}{needed}")
    return ", ".join(parts)


def arrow_of(kind: Type) -> Any:
    """The pyarrow.DataType that Spark takes for it."""
    import pyarrow as pa

    match kind:
        case Scalar():
            made: dict[str, Any] = {
                "boolean": pa.bool_(),
                "tinyint": pa.int8(),
                "smallint": pa.int16(),
                "int": pa.int32(),
                "bigint": pa.int64(),
                "float": pa.float32(),
                "double": pa.float64(),
                "string": pa.string(),
                "binary": pa.binary(),
                "date": pa.date32(),
                "timestamp": pa.timestamp("us", tz="UTC"),
                "timestamp_ntz": pa.timestamp("us"),
            }
            return made[kind.name]
        case Decimal():
            return pa.decimal128(kind.precision, kind.scale)
        case Array():
            return pa.list_(pa.field("element", arrow_of(kind.element)))
        case Map():
            return pa.map_(arrow_of(kind.key), arrow_of(kind.value))
        case Struct():
            return pa.struct([pa.field(field.name, arrow_of(field.type)) for field in kind.fields])
