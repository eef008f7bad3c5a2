"""Owns decoders: which there are, what they are made of, and how they treat a bad row.

A decoder is plain data, so it travels to tasks; what it is compiled to is kept by each process. It
returns as many rows as it was given, in their order: a null value stays null, and a value that
cannot be decoded becomes null with a reason. It never raises because of a row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from moldau.spark.decode.column_types import BINARY, Struct, Type, arrow_of, ddl_of
from moldau.spark.decode.columns import array_of
from moldau.spark.decode.framing import (
    BadRowError,
    Framing,
    without_confluent,
    without_fingerprint,
    without_indexes,
)

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

    def split(self, batch: Any) -> tuple[Any, Any]:
        """The good and the bad rows of a pyarrow.RecordBatch whose column `value` is decoded.

        Good ones have their value decoded; bad ones have `raw` and `error` in its place.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        at = batch.schema.get_field_index("value")
        raw = batch.column(at)
        values, errors = self.arrays(raw.to_pylist())
        is_good = pc.is_null(errors)
        good = batch.set_column(at, pa.field("value", values.type), values).filter(is_good)
        bad = batch.remove_column(at).append_column("raw", raw).append_column("error", errors)
        return good, bad.filter(pc.invert(is_good))


_NO_FIT: Final = (ValueError, TypeError, ArithmeticError)
"""What pyarrow raises for a value that a column does not hold; its own errors are of these."""


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

            read = AvroReading(decoder.source.decode()).read
        case Format.PROTOBUF:
            from moldau.spark.decode.protobuf import ProtobufReading

            read = ProtobufReading(decoder.source, decoder.message).read
    return _unframed(decoder, read)


def _unframed(decoder: Decoder, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    if decoder.framing is Framing.NONE:
        return read
    if decoder.framing is Framing.SINGLE_OBJECT:
        from moldau.spark.decode.avro import fingerprint

        expected = fingerprint(decoder.source.decode())
        return lambda value: read(without_fingerprint(value, expected))
    if decoder.format is Format.PROTOBUF:
        from moldau.spark.decode.protobuf import ProtobufReading

        wanted = ProtobufReading(decoder.source, decoder.message).indexes
        return lambda value: read(without_indexes(without_confluent(value), wanted))
    return lambda value: read(without_confluent(value))


RAW: Final = Decoder(format=Format.RAW, type=BINARY)

Schema = str | bytes | Mapping[str, Any] | Any
"""DDL, the text or the path of a schema, its JSON, or a StructType of Spark's."""
