"""Owns the decoding of Protobuf: messages of a descriptor set, without code made for them.

Fields that a message does not hold are their defaults where Protobuf has no notion of presence, and
null where it has (`optional`, messages, oneofs). Enums are their names, and numbers as text where
the schema does not know them. Unknown fields are passed over: that is how Protobuf's schemas grow.
"""

import base64
import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

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
from moldau.spark.decode.framing import BadRowError

Get = Callable[[Any], Any]

_SCALARS: Final[dict[int, Type]] = {
    FieldDescriptor.TYPE_DOUBLE: Scalar("double"),
    FieldDescriptor.TYPE_FLOAT: Scalar("float"),
    FieldDescriptor.TYPE_INT64: Scalar("bigint"),
    FieldDescriptor.TYPE_SINT64: Scalar("bigint"),
    FieldDescriptor.TYPE_SFIXED64: Scalar("bigint"),
    # No type of Spark's holds 64 bits without a sign.
    FieldDescriptor.TYPE_UINT64: Decimal(20, 0),
    FieldDescriptor.TYPE_FIXED64: Decimal(20, 0),
    FieldDescriptor.TYPE_INT32: Scalar("int"),
    FieldDescriptor.TYPE_SINT32: Scalar("int"),
    FieldDescriptor.TYPE_SFIXED32: Scalar("int"),
    FieldDescriptor.TYPE_UINT32: Scalar("bigint"),
    FieldDescriptor.TYPE_FIXED32: Scalar("bigint"),
    FieldDescriptor.TYPE_BOOL: Scalar("boolean"),
    FieldDescriptor.TYPE_STRING: STRING,
    FieldDescriptor.TYPE_BYTES: BINARY,
    FieldDescriptor.TYPE_ENUM: STRING,
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_AS_JSON: Final = frozenset(
    {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}
)
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32"),
        *("Bool", "String", "Bytes"),
    )
)


class ProtobufReading:
    """A message that was found in a descriptor set: the types of its columns, and a reader."""

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        self._descriptor = _message_of(descriptor_set, message)
        self._class = message_factory.GetMessageClass(self._descriptor)
        self.struct, self._get = _struct(self._descriptor, (message,))

    def read(self, value: bytes) -> dict[str, Any]:
        try:
            message: Any = self._class.FromString(value)
            if not message.IsInitialized():
                missing = ", ".join(message.FindInitializationErrors())
                raise BadRowError(f"not of the Protobuf schema: no {missing}")
            found: dict[str, Any] = self._get(message)
        except BadRowError:
            raise
        except DecodeError as error:
            raise BadRowError(f"not of the Protobuf schema: {error}") from None
        except (ArithmeticError, ValueError, RecursionError, json_format.Error) as error:
            # Such as a number in a Struct that JSON has no word for.
            raise BadRowError(f"not of the Protobuf schema: {error}") from None
        return found


@lru_cache(maxsize=256)
def message_at(content: bytes, indexes: tuple[int, ...]) -> str:
    """The name of a message of the file that a value was written with. Raises BadRowError.

    `content` is a file as a registry serialises it, or a descriptor set whose last file it is.
    """
    try:
        file = _written_file(content)
        found = file.message_type[indexes[0]]
        names = [found.name]
        for index in indexes[1:]:
            found = found.nested_type[index]
            names.append(found.name)
    except (DecodeError, ValueError, IndexError) as error:
        raise BadRowError(
            f"written with a Protobuf schema that has no message {list(indexes)}: {error}"
        ) from None
    return ".".join([file.package, *names] if file.package else names)


def _written_file(content: bytes) -> descriptor_pb2.FileDescriptorProto:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(content, validate=True)
        )
    except ValueError:
        # Not of a registry.
        return descriptor_pb2.FileDescriptorSet.FromString(content).file[-1]


def _message_of(descriptor_set: bytes, message: str) -> Descriptor:
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    hint = "make one: protoc --include_imports --descriptor_set_out=FILE.desc FILE.proto"
    try:
        files.ParseFromString(descriptor_set)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the schema is no descriptor set: {error}", hint=hint) from None
    try:
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
            hint=f"it has {', '.join(names)}" if names else hint,
        ) from None
    except TypeError as error:
        raise InvalidArgumentError(f"the descriptor set is not whole: {error}", hint=hint) from None
    return found


def _struct(descriptor: Descriptor, path: tuple[str, ...]) -> tuple[Struct, Get]:
    fields: list[Field] = []
    getters: list[tuple[str, Get]] = []
    for field in descriptor.fields:
        kind, get = _field(field, path)
        fields.append(Field(field.name, kind, field.is_required))
        getters.append((field.name, get))
    found = struct_of(fields, f"in message {descriptor.full_name}")
    return found, lambda message: {name: get(message) for name, get in getters}


def _field(field: Any, path: tuple[str, ...]) -> tuple[Type, Get]:
    name = field.name
    is_message = field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)
    if field.is_repeated and is_message and field.message_type.GetOptions().map_entry:
        return _map(field, path)
    kind, change = _one(field, path)
    if field.is_repeated:
        if change is None:
            return Array(kind, True), lambda message: list(getattr(message, name))
        return Array(kind, True), lambda message: [change(item) for item in getattr(message, name)]
    if field.has_presence:
        if change is None:
            return kind, lambda message: getattr(message, name) if message.HasField(name) else None
        return (
            kind,
            lambda message: change(getattr(message, name)) if message.HasField(name) else None,
        )
    if change is None:
        return kind, lambda message: getattr(message, name)
    return kind, lambda message: change(getattr(message, name))


def _map(field: Any, path: tuple[str, ...]) -> tuple[Type, Get]:
    entry = field.message_type.fields_by_name
    key, key_change = _one(entry["key"], path)
    value, change = _one(entry["value"], path)
    name = field.name

    def pairs(message: Any) -> list[tuple[Any, Any]]:
        return [
            (
                key_change(item) if key_change else item,
                change(inner) if change else inner,
            )
            for item, inner in getattr(message, name).items()
        ]

    return Map(key, value, True), pairs


def _one(field: Any, path: tuple[str, ...]) -> tuple[Type, Get | None]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return STRING, lambda number: names.get(number, str(number))
    if field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        return _SCALARS[field.type], None
    inner = field.message_type
    if inner.full_name == _TIMESTAMP:
        return Scalar("timestamp"), _moment
    if inner.full_name in _AS_JSON:
        return STRING, lambda message: json_format.MessageToJson(message, indent=None)
    if inner.full_name in _WRAPPERS:
        return _SCALARS[inner.fields_by_name["value"].type], lambda message: message.value
    if inner.full_name in path:
        raise InvalidArgumentError(
            f"message {inner.full_name} holds itself, at {field.full_name}: tables have no such "
            "type"
        )
    if not inner.fields:
        # There is nothing in it but that it is there.
        return Scalar("boolean"), lambda message: True
    return _struct(inner, (*path, inner.full_name))


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _moment(message: Any) -> dt.datetime:
    """To the microsecond, rounded down. OverflowError for what no calendar has."""
    if not 0 <= message.nanos < 1_000_000_000:
        raise OverflowError(f"a Timestamp with {message.nanos} nanoseconds")
    return _EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
