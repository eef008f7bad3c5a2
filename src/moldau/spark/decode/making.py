"""Owns the making of a decoder from what a user gives: a format, and a schema in one of many forms.

A schema is a path if it has no blank, colon or brace in it; a file that is not there is an error
that says so, not a schema that is wrong.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import Struct
from moldau.spark.decode.ddl import from_spark_json, parse_ddl
from moldau.spark.decode.decoder import RAW, Decoder, Format, Schema, _reader
from moldau.spark.decode.framing import Framing
from moldau.spark.decode.json_schema import from_json_schema
from moldau.spark.decode.registry import registry_at

_SCHEMA_BYTES_MAX: Final = 16 * 1024 * 1024
_NOT_IN_PATHS: Final = frozenset(" \t\r\n:{<\"'`,")


def decoder(
    format: str = "json",
    schema: Schema | None = None,
    *,
    message: str = "",
    framing: str = "none",
    registry: str | None = None,
    registry_options: Mapping[str, str] | None = None,
    only_known: bool = False,
) -> Decoder:
    """A decoder of values.

    `schema`: for JSON DDL text, a StructType, a JSON Schema or Spark's JSON of a schema; for Avro
    an .avsc; for Protobuf a descriptor set, of which `message` is decoded; as a file or itself.
    `framing`: what stands before values: none, confluent or single-object (Avro).
    `registry`: for confluent, where the schemas are found that values were written with: a URL, or
    a folder with a file for each id. `registry_options` are for the client of a registry.
    `only_known`: JSON with fields that the schema does not name is bad.
    Raises InvalidArgumentError that says what is wrong with the schema.
    """
    kind = _choice(Format, format, "format")
    frame = _choice(Framing, framing, "framing")
    _check(kind, frame, schema, message, only_known)
    if registry is not None and frame is not Framing.CONFLUENT:
        raise InvalidArgumentError(
            f"with the framing {frame} no value names a schema, so there is no use for a registry",
            hint="values of serialisers that know a registry: framing confluent",
        )
    known = None if registry is None else registry_at(registry, registry_options)
    match kind:
        case Format.RAW:
            return RAW
        case Format.JSON:
            made = Decoder(
                format=kind, type=json_struct(schema), framing=frame, only_known=only_known
            )
        case Format.AVRO:
            made = _avro(schema, frame)
        case Format.PROTOBUF:
            made = _protobuf(schema, message, frame)
    made = replace(made, registry=known)
    # What cannot be compiled is told now, not by a task.
    _reader(made)
    return made


C = TypeVar("C", Format, Framing)


def _choice(kinds: type[C], text: str, what: str) -> C:
    try:
        return kinds(text.lower())
    except ValueError:
        raise InvalidArgumentError(
            f"the {what} of values is {', '.join(kinds)}; not {text!r}"
        ) from None


def _check(
    kind: Format, frame: Framing, schema: Schema | None, message: str, only_known: bool
) -> None:
    if kind is Format.RAW:
        if schema is not None or frame is not Framing.NONE:
            raise InvalidArgumentError("raw values have neither schema nor framing")
    elif schema is None:
        hint = (
            "infer one from a sample: moldau.spark.decode.infer"
            if kind is Format.JSON
            else "name the file that it is in; of a pipeline: --schema FILE"
        )
        raise InvalidArgumentError(f"values of the format {kind} need a schema", hint=hint)
    if frame is Framing.SINGLE_OBJECT and kind is not Format.AVRO:
        raise InvalidArgumentError("the framing single-object is Avro's alone")
    if (kind is Format.PROTOBUF) != bool(message):
        raise InvalidArgumentError(
            "Protobuf needs the name of the message, with its package"
            if kind is Format.PROTOBUF
            else f"values of the format {kind} have no name of a message",
            hint="of a pipeline: --message PACKAGE.MESSAGE" if kind is Format.PROTOBUF else "",
        )
    if only_known and kind is not Format.JSON:
        raise InvalidArgumentError(f"only JSON tells unknown fields, not {kind}")


def json_struct(schema: Schema) -> Struct:
    """The fields of JSON values from any of the forms of a schema."""
    if isinstance(schema, Struct):
        return schema
    if hasattr(schema, "jsonValue"):
        return from_spark_json(schema.jsonValue())
    if isinstance(schema, Mapping):
        return _from_mapping(schema)
    text = _text(schema)
    if not text.lstrip().startswith("{"):
        return parse_ddl(text)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"the schema is no JSON: {error}") from None
    return _from_mapping(found)


def _from_mapping(found: Mapping[str, Any]) -> Struct:
    return from_spark_json(found) if found.get("type") == "struct" else from_json_schema(found)


def _avro(schema: Schema, frame: Framing) -> Decoder:
    from moldau.spark.decode.avro import AvroReading

    text = json.dumps(schema) if isinstance(schema, Mapping) else _text(schema)
    struct = AvroReading(text).struct
    return Decoder(format=Format.AVRO, type=struct, framing=frame, source=text.encode())


def _protobuf(schema: Schema, message: str, frame: Framing) -> Decoder:
    from moldau.spark.decode.protobuf import ProtobufReading

    source = schema if isinstance(schema, bytes) else _file(Path(str(schema)))
    struct = ProtobufReading(source, message).struct
    return Decoder(
        format=Format.PROTOBUF, type=struct, framing=frame, source=source, message=message
    )


def _text(schema: Schema) -> str:
    if isinstance(schema, Path):
        return _decoded(_file(schema))
    if isinstance(schema, bytes):
        return _decoded(schema)
    if not isinstance(schema, str):
        raise InvalidArgumentError(f"a schema is a text, a file or a StructType, not {schema!r}")
    if schema and not _NOT_IN_PATHS & set(schema):
        return _decoded(_file(Path(schema)))
    if "\n" not in schema and Path(schema).suffix and _is_file(schema):
        return _decoded(_file(Path(schema)))
    return schema


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # Text of a schema that no file can be named like: too long, mostly.
        return False


def _decoded(found: bytes) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError("the schema is no text") from None


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(_SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgumentError(
            f"the schema {path} cannot be read: {error.strerror}",
            hint="a schema is a file, or text such as: id bigint, name string",
        ) from None
    if len(found) > _SCHEMA_BYTES_MAX:
        raise InvalidArgumentError(f"the schema {path} is larger than {_SCHEMA_BYTES_MAX} bytes")
    return found
