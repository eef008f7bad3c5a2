"""Protobuf: reads messages of a descriptor set, without generated code.

A missing field has its default, or null if it has presence (`optional`, messages, oneofs). Enums
become their names, unknown ones their numbers as text. Unknown fields are ignored.
"""

import base64
import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import TIMESTAMP, list_of, map_of, struct_of
from moldau.spark.decode.registry import BadRowError, WriterSchema

Get = Callable[[Any], Any]

_SCALARS: Final[dict[int, Any]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    # Spark has no unsigned 64-bit type.
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_AS_JSON: Final = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_VARINT_BYTES_MAX: Final = 5
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ProtobufReader:
    """A message type of a descriptor set: its column types, and a reader."""

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        descriptor = _message_of(descriptor_set, message)
        self._name = message
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self.struct, self._get = _struct(descriptor, (message,))

    def read(self, value: bytes, written: WriterSchema | None = None) -> dict[str, Any]:
        """The fields of a message; with `written`, after its index in that file."""
        if written is not None:
            indexes, value = _split_indexes(value)
            name = _message_at(written.content, indexes)
            if name != self._name:
                raise BadRowError(f"message type is {name}, not {self._name}")
        try:
            message: Any = self._parse(value)
            is_whole = message.IsInitialized()
            found: dict[str, Any] = self._get(message) if is_whole else {}
        except (DecodeError, ArithmeticError, ValueError, RecursionError, json_format.Error) as bad:
            # Also a number in a Struct that JSON cannot represent.
            raise BadRowError(f"does not match the Protobuf schema: {bad}") from None
        if not is_whole:
            missing = ", ".join(message.FindInitializationErrors())
            raise BadRowError(f"does not match the Protobuf schema: {missing} is missing")
        return found


def _split_indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The message indexes that Confluent's serialiser writes, and the rest of the value."""
    count, at = _zigzag(value, 0)
    if not 0 <= count <= len(value):
        raise BadRowError("corrupt message indexes before the value")
    found = []
    for _ in range(count):
        number, at = _zigzag(value, at)
        found.append(number)
    return tuple(found or (0,)), value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(value[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise BadRowError("corrupt message indexes before the value")


@lru_cache(maxsize=256)
def _message_at(content: bytes, indexes: tuple[int, ...]) -> str:
    """The name of a message in the file that a value was written with. Raises BadRowError.

    `content` is a file serialised by a registry, or a descriptor set with it as the last file.
    """
    try:
        try:
            decoded = base64.b64decode(content, validate=True)
            file = descriptor_pb2.FileDescriptorProto.FromString(decoded)
        except ValueError:  # Not from a registry.
            file = descriptor_pb2.FileDescriptorSet.FromString(content).file[-1]
        found = file.message_type[indexes[0]]
        names = [*filter(None, [file.package]), found.name]
        for index in indexes[1:]:
            found = found.nested_type[index]
            names.append(found.name)
    except (DecodeError, ValueError, IndexError) as error:
        raise BadRowError(
            f"written with a Protobuf schema without a message {list(indexes)}: {error}"
        ) from None
    return ".".join(names)


def _message_of(descriptor_set: bytes, message: str) -> Descriptor:
    hint = "create one: protoc --include_imports --descriptor_set_out=FILE.desc FILE.proto"
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptor_set)
        for file in files.file:
            pool.Add(file)
        found: Descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        names = [
            f"{file.package}.{item.name}".lstrip(".")
            for file in files.file
            for item in file.message_type
            if not file.package.startswith("google.protobuf")
        ]
        raise InvalidArgumentError(
            f"the descriptor set has no message {message!r}",
            hint=f"messages: {', '.join(names)}" if names else hint,
        ) from None
    except (DecodeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the schema is not a complete descriptor set: {error}", hint=hint
        ) from None
    return found


def _struct(descriptor: Descriptor, path: tuple[str, ...]) -> tuple[Any, Get]:
    fields: list[Any] = []
    getters: list[tuple[str, Get]] = []
    for field in descriptor.fields:
        kind, get = _field(field, path)
        fields.append(pa.field(field.name, kind))
        getters.append((field.name, get))
    found = struct_of(fields, f"in message {descriptor.full_name}")
    return found, lambda message: {name: get(message) for name, get in getters}


def _field(field: Any, path: tuple[str, ...]) -> tuple[Any, Get]:
    name, get = field.name, attrgetter(field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        kind, change = _one(entry["value"], path)
        return map_of(_one(entry["key"], path)[0], kind), lambda message: {
            key: change(value) if change else value for key, value in get(message).items()
        }
    kind, change = _one(field, path)
    if field.is_repeated:
        return list_of(kind), lambda message: [
            *(map(change, get(message)) if change else get(message))
        ]
    plain: Get = get if change is None else (lambda message: change(get(message)))
    if not field.has_presence:
        return kind, plain
    return kind, lambda message: plain(message) if message.HasField(name) else None


def _one(field: Any, path: tuple[str, ...]) -> tuple[Any, Get | None]:
    """The type of a value, and its conversion."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), None
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda number: names.get(number, str(number))
    inner = field.message_type
    if inner is None:
        return _SCALARS[field.cpp_type], None
    if inner.full_name == "google.protobuf.Timestamp":
        return TIMESTAMP, _datetime
    if inner.full_name in _AS_JSON:
        return pa.string(), lambda message: json_format.MessageToJson(message, indent=None)
    if inner.full_name in _WRAPPERS:
        return _one(inner.fields_by_name["value"], path)[0], attrgetter("value")
    if inner.full_name in path:
        raise InvalidArgumentError(
            f"message {inner.full_name} contains itself, at {field.full_name}: tables have no such "
            "type"
        )
    if not inner.fields:
        # An empty message has only presence.
        return pa.bool_(), lambda message: True
    return _struct(inner, (*path, inner.full_name))


def _datetime(message: Any) -> dt.datetime:
    """Rounded down to microseconds. Raises OverflowError outside the years 1 to 9999."""
    if not 0 <= message.nanos < 1_000_000_000:
        raise OverflowError(f"a Timestamp with {message.nanos} nanoseconds")
    return _EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
