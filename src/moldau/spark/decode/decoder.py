"""Decoders of values.

A decoder is plain data that is sent to tasks; each process caches the compiled reader. It returns
all rows in order: a null value stays null, and an undecodable value becomes null with an error. It
never raises because of a row.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import (
    array_of,
    columns_of,
    from_ddl,
    from_spark,
    from_spark_json,
    struct_of,
)
from moldau.spark.decode.avro import AvroReader
from moldau.spark.decode.json_schema import from_json_schema
from moldau.spark.decode.json_values import JsonReader
from moldau.spark.decode.protobuf import ProtobufReader
from moldau.spark.decode.registry import (
    CONFLUENT_BYTES,
    BadRowError,
    Registry,
    registry_at,
    split_confluent,
)
from moldau.spark.formats import Format, Framing

_REASON_CHARACTERS_MAX: Final = 500
_NOT_IN_PATHS: Final = frozenset(" \t\r\n:{<\"'`,")
_NO_FIT: Final = (ValueError, TypeError, ArithmeticError)
"""What pyarrow raises for a value that does not fit a column; its own errors derive from these."""

Schema = str | bytes | Mapping[str, Any] | Any
"""DDL, the text or the path of a schema, its JSON, a StructType of Spark or of pyarrow."""


class Decoded(NamedTuple):
    """A row: its fields, or None with an error; None without an error is a tombstone."""

    value: Any
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What `decoder()` makes. Hashable and picklable."""

    format: Format
    schema: Any = None
    """JSON: a pyarrow.StructType; Avro: the schema text; Protobuf: a descriptor set."""
    message: str = ""
    framing: Framing = Framing.NONE
    registry: Registry | None = None
    """For Framing.CONFLUENT: the schemas that values were written with."""

    @property
    def struct(self) -> Any | None:
        """The fields, as a pyarrow.StructType; None for raw."""
        return None if self.format is Format.RAW else _reading(self).struct

    @property
    def arrow_type(self) -> Any:
        """The type of the column."""
        return pa.binary() if self.format is Format.RAW else columns_of(self.struct)

    @property
    def ddl(self) -> str:
        """The type as Spark shows it."""
        return str(from_arrow_type(self.arrow_type, prefer_timestamp_ntz=True).simpleString())

    def decode(self, values: Iterable[bytes | None]) -> list[Decoded]:
        """As plain values, without Arrow and Spark."""
        return [*map(Decoded, *self._read(values))]

    def _read(self, values: Iterable[bytes | None]) -> tuple[list[Any], list[str | None]]:
        read = _reader(self)
        found: list[Any] = []
        errors: list[str | None] = []
        for value in values:
            error = None
            try:
                found.append(None if value is None else read(value))
            except BadRowError as bad:
                found.append(None)
                error = _short(str(bad))
            errors.append(error)
        return found, errors

    def arrays(self, values: Sequence[bytes | None]) -> tuple[Any, Any]:
        """The values as a pyarrow.Array of `arrow_type`, and the errors as strings."""
        found, errors = self._read(values)
        kind = self.arrow_type
        try:
            made = array_of(found, kind)
        except _NO_FIT:
            for place, value in enumerate(found):
                try:
                    array_of([value], kind)
                except _NO_FIT as error:
                    reason = _short(f"does not match the schema: {error}")
                    found[place], errors[place] = None, reason
            made = array_of(found, kind)
        return made, pa.array(errors, type=pa.string())

    def unknown_fields(self, values: Iterable[bytes | None]) -> Counter[str]:
        """Counts of fields in JSON values that are not in the schema, by name."""
        if self.format is not Format.JSON:
            return Counter()
        if self.framing is Framing.CONFLUENT:
            values = (each[CONFLUENT_BYTES:] if each and not each[0] else None for each in values)
        found: Counter[str] = _reading(self).unknown(values)
        return found

    def split(self, batch: Any, *, keep_raw: bool = False) -> tuple[Any, Any]:
        """Decodes the column `value` of a pyarrow.RecordBatch; returns good and bad rows.

        Bad rows have `raw` and `error` instead of `value`; good rows `raw`, too, with `keep_raw`.
        """
        at = batch.schema.get_field_index("value")
        raw = batch.column(at)
        values, errors = self.arrays(raw.to_pylist())
        is_good = pc.is_null(errors)
        good = batch.set_column(at, pa.field("value", values.type), values)
        good = (good.append_column("raw", raw) if keep_raw else good).filter(is_good)
        bad = batch.remove_column(at).append_column("raw", raw).append_column("error", errors)
        return good, bad.filter(pc.invert(is_good))


RAW: Final = Decoder(format=Format.RAW)


def _short(reason: str) -> str:
    # Errors contain field names of the row: any text of any length.
    text = reason.encode(errors="replace").decode()
    return text if len(text) <= _REASON_CHARACTERS_MAX else text[:_REASON_CHARACTERS_MAX] + "…"


@lru_cache(maxsize=64)
def _reading(decoder: Decoder) -> Any:
    """A parsed schema: its fields (`struct`), and a reader of values (`read`)."""
    if decoder.format is Format.PROTOBUF:
        return ProtobufReader(decoder.schema, decoder.message)
    kind = JsonReader if decoder.format is Format.JSON else AvroReader
    return kind(decoder.schema)


@lru_cache(maxsize=64)
def _reader(decoder: Decoder) -> Callable[[bytes], Any]:
    """A function from a framed value to its fields; it raises BadRowError."""
    if decoder.format is Format.RAW:
        return bytes
    reading = _reading(decoder)
    read: Callable[..., Any] = reading.read
    if decoder.framing is Framing.NONE:
        return read
    if decoder.framing is Framing.SINGLE_OBJECT:
        header: bytes = reading.single_object_header()

        def checked(value: bytes) -> Any:
            if not value.startswith(header):
                raise BadRowError(
                    "the value has no header of Avro's single-object encoding, or that of another "
                    "schema"
                )
            return read(value[len(header) :])

        return checked
    if decoder.registry is None:
        raise InvalidArgumentError(
            "the framing confluent needs a schema registry",
            hint="give its URL, or a folder of schemas by id: --registry http://HOST:8081",
        )
    find = decoder.registry.finder(serialized=decoder.format is Format.PROTOBUF)

    def resolved(value: bytes) -> Any:
        schema_id, body = split_confluent(value)
        written = find(schema_id)
        if written is None:
            raise BadRowError(f"unknown schema id {schema_id}")
        return read(body, written)

    return resolved


# -- creating a decoder


def decoder(
    format: str = "json",
    schema: Schema | None = None,
    *,
    message: str = "",
    framing: str = "none",
    registry: str | None = None,
    registry_options: Mapping[str, str] | None = None,
) -> Decoder:
    """A decoder of values. Raises InvalidArgumentError for an invalid schema.

    `schema`: for JSON DDL text, a StructType, a JSON Schema or Spark's JSON of a schema; for Avro
    an .avsc; for Protobuf a descriptor set with `message`; as a file or the content itself.
    `framing`: the header before values: none, confluent or single-object (Avro).
    `registry`: for confluent: the URL of a registry with `registry_options` for its client, or a
    folder with a file for each schema id.
    """
    kind = _choice(Format, format, "format")
    frame = _choice(Framing, framing, "framing")
    _check(kind, frame, schema, message, registry)
    if kind is Format.RAW:
        return RAW
    if kind is Format.JSON:
        schema = json_struct(schema)
    elif kind is Format.PROTOBUF:
        schema = schema if isinstance(schema, bytes) else _file(Path(str(schema)))
    else:
        schema = json.dumps(schema) if isinstance(schema, Mapping) else _text(schema)
    known = None if registry is None else registry_at(registry, registry_options)
    made = Decoder(format=kind, schema=schema, message=message, framing=frame, registry=known)
    # Report an invalid schema now, not in a task.
    _reader(made)
    return made


C = TypeVar("C", Format, Framing)


def _choice(kinds: type[C], text: str, what: str) -> C:
    try:
        return kinds(text.lower())
    except ValueError:
        raise InvalidArgumentError(
            f"the {what} of values must be one of {', '.join(kinds)}, not {text!r}"
        ) from None


def _check(
    kind: Format, frame: Framing, schema: Schema | None, message: str, registry: str | None
) -> None:
    hint = ""
    if kind is Format.RAW and (schema is not None or frame is not Framing.NONE):
        wrong = "raw values have neither schema nor framing"
    elif kind is not Format.RAW and schema is None:
        wrong = f"values of the format {kind} need a schema"
        hint = "give its file; for a pipeline: --schema FILE"
        if kind is Format.JSON:
            hint = "infer one from a sample: moldau.spark.decode.infer"
    elif frame is Framing.SINGLE_OBJECT and kind is not Format.AVRO:
        wrong = "the framing single-object is only for Avro"
    elif kind is Format.PROTOBUF and not message:
        wrong = "Protobuf needs a message name, with its package"
        hint = "for a pipeline: --message PACKAGE.MESSAGE"
    elif kind is not Format.PROTOBUF and message:
        wrong = f"a message name is only for Protobuf, not for {kind}"
    elif registry is not None and frame is not Framing.CONFLUENT:
        wrong = f"a registry needs the framing confluent, not {frame}"
        hint = "serialisers that use a registry write the framing confluent"
    else:
        return
    raise InvalidArgumentError(wrong, hint=hint)


def json_struct(schema: Schema) -> Any:
    """A JSON schema of any form as a pyarrow.StructType."""
    if isinstance(schema, pa.StructType):
        return struct_of(schema)
    if hasattr(schema, "jsonValue"):
        return from_spark(schema)
    if not isinstance(schema, Mapping):
        text = _text(schema)
        if not text.lstrip().startswith("{"):
            return from_ddl(text)
        try:
            schema = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(f"the schema is not JSON: {error}") from None
    return from_spark_json(schema) if schema.get("type") == "struct" else from_json_schema(schema)


def _text(schema: Schema) -> str:
    """A text without blanks, colons and braces is a path, and so is the path of any file."""
    if not isinstance(schema, str | bytes | Path):
        raise InvalidArgumentError(
            f"a schema must be a text, a file or a StructType, not {schema!r}"
        )
    if isinstance(schema, str) and _NOT_IN_PATHS & set(schema or " ") and not _is_file(schema):
        return schema
    found = schema if isinstance(schema, bytes) else _file(Path(schema))
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError("the schema is not UTF-8 text") from None


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # Not a valid file name: mostly a schema text, too long for one.
        return False


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot read the schema {path}: {error.strerror}",
            hint="give a file, or a text such as: id bigint, name string",
        ) from None
