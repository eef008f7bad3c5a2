"""Our bytes compared with those of two other implementations, for all APIs and versions."""

import dataclasses
import datetime
import importlib
import io
import itertools
import pkgutil
import uuid
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import kafka.protocol
import pytest
from chunks import joined
from effort import seeds
from kafka.protocol.api_message import ApiMessage
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from moldau.wire.registry import APIS, REQUESTS, RESPONSES
from moldau.wire.schema import Message, Struct

SEEDS = seeds(2)

RENAMED = {
    ("ProduceRequest", "topic_data"): "topics",
    ("ProduceTopic", "partition_data"): "partitions",
    ("ProduceResponse", "responses"): "topics",
    ("ProduceResponseTopic", "partition_responses"): "partitions",
    ("FetchRequest", "forgotten_topics_data"): "forgotten_topics",
    ("FetchResponse", "responses"): "topics",
    # kafka-python has names of its own for these.
    ("MetadataResponse", "authorized_operations"): "cluster_authorized_operations",
    ("MetadataResponseTopic", "authorized_operations"): "topic_authorized_operations",
    ("DescribeClusterResponse", "authorized_operations"): "cluster_authorized_operations",
    ("DescribeTopicPartitionsResponseTopic", "authorized_operations"): (
        "topic_authorized_operations"
    ),
}
"""Where our name of a field is not the snake_case of Kafka's."""

CASES = [
    pytest.param(messages, key, id=f"{api.title}{suffix}")
    for key, api in APIS.items()
    for suffix, messages in (("Request", REQUESTS), ("Response", RESPONSES))
]


def versions(key: int) -> range:
    return range(APIS[key].versions.first, APIS[key].versions.last + 1)


@cache
def kafka_python_messages() -> dict[str, Any]:
    for found in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in found.name and not found.name.endswith("generate_stubs"):
            importlib.import_module(found.name)
    classes: dict[str, Any] = {}
    waiting = list(ApiMessage.__subclasses__())
    while waiting:
        cls = waiting.pop()
        classes.setdefault(cls.__name__, cls)
    return classes


def body(message: Message, version: int) -> bytes:
    return joined(message.encode(version))


def to_kafka_python(ours: Struct, theirs: Any, version: int) -> dict[str, Any]:
    """The keyword arguments that build the same message there."""
    mine = {name: f for name, f in type(ours).FIELDS.items() if version in f.versions}
    fields = [field for field in theirs._fields if field.for_version_q(version)]
    named = {RENAMED.get((type(ours).__name__, field.name), field.name): field for field in fields}
    assert list(named) == list(mine)
    # An absent uuid is None there, so that an explicit default would be sent.
    named = {
        name: field
        for name, field in named.items()
        if not (version in mine[name].tagged and getattr(ours, name) == mine[name].default)
    }
    return {
        field.name: translate(getattr(ours, name), field, version) for name, field in named.items()
    }


def translate(value: Any, field: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return field.data_class(version=version, **to_kafka_python(value, field, version))
    if isinstance(value, list):
        if field.is_struct_array():
            return [translate(item, field.array_of, version) for item in value]
        kind = field.type_str.removeprefix("[]")
        return [uuid.UUID(bytes=item) if kind == "uuid" else item for item in value]
    if field.type_str == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    return uuid.UUID(bytes=value) if field.type_str == "uuid" else value


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_bytes_equal_those_of_kafka_python(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    cls = messages[key]
    theirs = kafka_python_messages().get(cls.__name__)
    if theirs is None:
        pytest.skip("kafka-python does not know this API")
    for version, seed in itertools.product(versions(key), SEEDS):
        ours = make_message(cls, version, seed)
        values = to_kafka_python(ours, theirs._struct, version)
        expected = bytes(theirs(version=version, **values).encode())
        assert body(ours, version) == expected
        assert cls.decode(memoryview(expected), version) == ours


def normal(value: Any) -> Any:
    """A value of kio as we would hold it."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def compare_with_kio(ours: Any, theirs: Any, version: int, path: str) -> None:
    names = [name for name, f in type(ours).FIELDS.items() if version in f.versions]
    fields = dataclasses.fields(theirs)
    assert len(names) == len(fields), path
    for name, field in zip(names, fields, strict=True):
        mine, other = getattr(ours, name), normal(getattr(theirs, field.name))
        where = f"{path}.{name}"
        if mine is None and type(ours).FIELDS[name].tag >= 0:
            continue
        if isinstance(mine, Struct):
            compare_with_kio(mine, other, version, where)
        elif isinstance(mine, list) and mine and isinstance(mine[0], Struct):
            assert len(mine) == len(other), where
            for index, (a, b) in enumerate(zip(mine, other, strict=True)):
                compare_with_kio(a, b, version, f"{where}[{index}]")
        elif isinstance(mine, list):
            assert mine == [normal(item) for item in other], where
        elif mine == bytes(16) and other is None:
            continue
        else:
            assert mine == other, where


@pytest.mark.parametrize(("messages", "key"), CASES)
def test_kio_reads_the_same_values_and_writes_the_same_bytes(
    messages: Any, key: int, make_message: Callable[..., Any]
) -> None:
    load = load_request_schema if messages is REQUESTS else load_response_schema
    cls = messages[key]
    known = 0
    for version in versions(key):
        try:
            schema = load(key, version)
        except UnknownEntity:
            continue
        known += 1
        read, write = entity_reader(schema), entity_writer(schema)
        for seed in SEEDS:
            ours = make_message(cls, version, seed)
            data = body(ours, version)
            theirs, size = read(data, 0)
            assert size == len(data)
            compare_with_kio(ours, theirs, version, cls.__name__)
            out = io.BytesIO()
            write(out, theirs)
            assert out.getvalue() == data
    # It dropped two old versions of one API.
    assert known >= len(versions(key)) - 2
