"""Owns decoders: which there are, what they are made of, and how they treat a bad row.

A decoder is plain data, so it travels to tasks; what it is compiled to is kept by each process. It
returns as many rows as it was given, in their order: a null value stays null, and a value that
cannot be decoded becomes null with a reason. It never raises because of a row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import BINARY, Struct, Type, arrow_of, ddl_of
from moldau.spark.decode.columns import array_of
from moldau.spark.decode.framing import (
    BadRowError,
    Framing,
    split_confluent,
    split_indexes,
    without_fingerprint,
)
from moldau.spark.decode.registry import Registry, Written

_REASON_CHARACTERS_MAX: Final = 500


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Decoded(NamedTuple):
    """A row: its fields, or None with a reason; None and no reason is a tombstone."""

    value: Any
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What `decoder()` makes. Hashable and picklable."""

    format: Format
    type: Type
    """Of the decoded value: a Struct, or binary for raw."""
    framing: Framing = Framing.NONE
    source: bytes = b""
    """The text of an Avro schema, or a descriptor set."""
    message: str = ""
    registry: Registry | None = None
    """Where the schemas are that values with a header of Confluent's were written with."""
    only_known: bool = False

    @property
    def struct(self) -> Struct | None:
        """The fields; None for raw."""
        return self.type if isinstance(self.type, Struct) else None

    @property
    def ddl(self) -> str:
        """The type of the decoded value as Spark's SQL writes it."""
        return ddl_of(self.type)

    @property
    def arrow_type(self) -> Any:
        """The same as a pyarrow.DataType."""
        return arrow_of(self.type)

    def decode(self, values: Iterable[bytes | None]) -> list[Decoded]:
        """As plain values, without Arrow and Spark."""
        read = _reader(self)
        return [_decoded(read, value) for value in values]

    def arrays(self, values: Sequence[bytes | None]) -> tuple[Any, Any]:
        """The values as a pyarrow.Array of the type, and the reasons as one of strings."""
        import pyarrow as pa

        rows = self.decode(values)
        found = [row.value for row in rows]
        errors = [row.error for row in rows]
        try:
            made = array_of(found, self.type)
        except _NO_FIT:
            for place, value in enumerate(found):
                reason = _misfit(value, self.type)
                if reason is not None:
                    found[place], errors[place] = None, reason
            made = array_of(found, self.type)
        return made, pa.array(errors, type=pa.string())

    def unknown_fields(self, values: Iterable[bytes | None]) -> Counter[str]:
        """How often fields are in JSON values that the schema does not name, by their names."""
        struct = self.struct
        if self.format is not Format.JSON or struct is None:
            return Counter()
        from moldau.spark.decode.json_values import unknown_names

        return unknown_names(struct, (_body(self, value) for value in values))

    def split(self, batch: Any, *, keep_raw: bool = False) -> tuple[Any, Any]:
        """The good and the bad rows of a pyarrow.RecordBatch whose column `value` is decoded.

        Good ones have their value decoded; bad ones have `raw` and `error` in its place. With
        `keep_raw`, good ones have `raw` beside it.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        at = batch.schema.get_field_index("value")
        raw = batch.column(at)
        values, errors = self.arrays(raw.to_pylist())
        is_good = pc.is_null(errors)
        good = batch.set_column(at, pa.field("value", values.type), values)
        good = (good.append_column("raw", raw) if keep_raw else good).filter(is_good)
        bad = batch.remove_column(at).append_column("raw", raw).append_column("error", errors)
        return good, bad.filter(pc.invert(is_good))


_NO_FIT: Final = (ValueError, TypeError, ArithmeticError)
"""What pyarrow raises for a value that a column does not hold; its own errors are of these."""


def _body(decoder: Decoder, value: bytes | None) -> bytes | None:
    """Without what stands before it; None for what is no value."""
    if value is None or decoder.framing is not Framing.CONFLUENT:
        return value
    try:
        return split_confluent(value)[1]
    except BadRowError:
        return None


def _misfit(value: Any, kind: Type) -> str | None:
    """Why a value that was decoded does not fit into its column."""
    try:
        array_of([value], kind)
    except _NO_FIT as error:
        return _short(f"not of the schema: {error}")
    return None


def _decoded(read: Callable[[bytes], Any], value: bytes | None) -> Decoded:
    if value is None:
        return Decoded(None, None)
    try:
        return Decoded(read(value), None)
    except BadRowError as error:
        return Decoded(None, _short(str(error)))


def _short(reason: str) -> str:
    # Names of fields in a reason come from the row: they may be of any length and any text.
    text = reason.encode(errors="replace").decode()
    return text if len(text) <= _REASON_CHARACTERS_MAX else text[:_REASON_CHARACTERS_MAX] + "…"


@lru_cache(maxsize=64)
def _reader(decoder: Decoder) -> Callable[[bytes], Any]:
    match decoder.format:
        case Format.RAW:
            read: Callable[[bytes], Any] = bytes
        case Format.JSON:
            from moldau.spark.decode.json_values import json_reader

            struct = decoder.struct or Struct(())
            read = json_reader(struct, only_known=decoder.only_known)
        case Format.AVRO:
            from moldau.spark.decode.avro import AvroReading

            reading = AvroReading(decoder.source.decode())
            if decoder.framing is Framing.CONFLUENT:
                return _resolving(decoder, lambda value, by: reading.read(value, by))
            read = reading.read
        case Format.PROTOBUF:
            from moldau.spark.decode.protobuf import ProtobufReading, message_at

            message = ProtobufReading(decoder.source, decoder.message)

            def read_message(value: bytes, written: Written) -> Any:
                indexes, body = split_indexes(value)
                found = message_at(written.content, indexes)
                if found != decoder.message:
                    raise BadRowError(f"another message: {found}, not {decoder.message}")
                return message.read(body)

            if decoder.framing is Framing.CONFLUENT:
                return _resolving(decoder, read_message)
            read = message.read
    if decoder.framing is Framing.CONFLUENT:
        # JSON names its fields: all there is to know is whether somebody knows the schema.
        return _resolving(decoder, lambda value, _: read(value))
    if decoder.framing is Framing.SINGLE_OBJECT:
        from moldau.spark.decode.avro import fingerprint

        expected = fingerprint(decoder.source.decode())
        return lambda value: read(without_fingerprint(value, expected))
    return read


def _resolving(decoder: Decoder, read: Callable[[bytes, Written], Any]) -> Callable[[bytes], Any]:
    """Values by the schema that they were written with, which their header names."""
    registry = decoder.registry
    if registry is None:
        raise InvalidArgumentError(
            "values with the framing confluent name the schema that they were written with, and "
            "nothing says where it is found",
            hint="name the registry, or a folder of schemas by id: --registry http://HOST:8081",
        )
    is_serialized = decoder.format is Format.PROTOBUF

    def resolved(value: bytes) -> Any:
        schema_id, body = split_confluent(value)
        written = registry.find(schema_id, serialized=is_serialized)
        if written is None:
            raise BadRowError(f"nobody knows the schema {schema_id} that it was written with")
        return read(body, written)

    return resolved


RAW: Final = Decoder(format=Format.RAW, type=BINARY)

Schema = str | bytes | Mapping[str, Any] | Any
"""DDL, the text or the path of a schema, its JSON, or a StructType of Spark's."""
