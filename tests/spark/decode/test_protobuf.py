"""Protobuf by a descriptor set: nested, repeated, enums, maps, oneofs, times; and what is bad."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import decoder

F = descriptor_pb2.FieldDescriptorProto


def field(name: str, number: int, kind: Any, **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    return F(name=name, number=number, type=kind, label=more.pop("label", F.LABEL_OPTIONAL), **more)


def files() -> descriptor_pb2.FileDescriptorSet:
    order = descriptor_pb2.DescriptorProto(
        name="Order",
        field=[
            field("id", 1, F.TYPE_INT64),
            field("big", 2, F.TYPE_UINT64),
            field("note", 3, F.TYPE_STRING, proto3_optional=True, oneof_index=1),
            field("state", 4, F.TYPE_ENUM, type_name=".shop.State"),
            field("at", 5, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
            field("lines", 6, F.TYPE_MESSAGE, type_name=".shop.Order.Line", label=F.LABEL_REPEATED),
            field(
                "tags", 7, F.TYPE_MESSAGE, type_name=".shop.Order.TagsEntry", label=F.LABEL_REPEATED
            ),
            field("card", 8, F.TYPE_STRING, oneof_index=0),
            field("cash", 9, F.TYPE_BOOL, oneof_index=0),
            field("limit", 10, F.TYPE_MESSAGE, type_name=".google.protobuf.Int32Value"),
        ],
        nested_type=[
            descriptor_pb2.DescriptorProto(
                name="Line", field=[field("sku", 1, F.TYPE_STRING), field("n", 2, F.TYPE_UINT32)]
            ),
            descriptor_pb2.DescriptorProto(
                name="TagsEntry",
                field=[field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_INT32)],
                options=descriptor_pb2.MessageOptions(map_entry=True),
            ),
        ],
        oneof_decl=[
            descriptor_pb2.OneofDescriptorProto(name="payment"),
            descriptor_pb2.OneofDescriptorProto(name="_note"),
        ],
    )
    tree = descriptor_pb2.DescriptorProto(
        name="Tree", field=[field("left", 1, F.TYPE_MESSAGE, type_name=".shop.Tree")]
    )
    loose = descriptor_pb2.DescriptorProto(
        name="Loose", field=[field("any", 1, F.TYPE_MESSAGE, type_name=".google.protobuf.Value")]
    )
    shop = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[
            "google/protobuf/struct.proto",
            "google/protobuf/timestamp.proto",
            "google/protobuf/wrappers.proto",
        ],
        message_type=[tree, order, loose],
        enum_type=[
            descriptor_pb2.EnumDescriptorProto(
                name="State",
                value=[
                    descriptor_pb2.EnumValueDescriptorProto(name="NEW", number=0),
                    descriptor_pb2.EnumValueDescriptorProto(name="DONE", number=1),
                ],
            )
        ],
    )
    old = descriptor_pb2.FileDescriptorProto(
        name="old.proto",
        package="old",
        syntax="proto2",
        message_type=[
            descriptor_pb2.DescriptorProto(
                name="Strict", field=[field("id", 1, F.TYPE_INT32, label=F.LABEL_REQUIRED)]
            )
        ],
    )
    found = descriptor_pb2.FileDescriptorSet()
    for known in (struct_pb2, timestamp_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.extend([shop, old])
    return found


SET = files().SerializeToString()


def order(**fields: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)


def test_a_message_becomes_a_row_with_its_types(tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(SET)
    made = decoder("protobuf", str(file), message="shop.Order")
    assert str(made.arrow_type) == (
        "struct<id: int64, big: decimal128(20, 0), note: string, state: string, "
        "at: timestamp[us, tz=UTC], lines: list<element: struct<sku: string, n: int64>>, "
        "tags: map<string, int32>, card: string, cash: bool, limit: int32>"
    )
    message = order(
        id=-1,
        big=2**64 - 1,
        state=1,
        tags={"a": 1},
        cash=False,
        lines=[{"sku": "x", "n": 2**32 - 1}],
    )
    message.at.FromDatetime(dt.datetime(2026, 1, 1, 0, 0, 0, 5))
    message.limit.value = 0
    values, errors = made.arrays([message.SerializeToString(), b"", None])
    assert errors.to_pylist() == [None, None, None]
    full, empty, nothing = values.to_pylist()
    at = full.pop("at")
    assert at == dt.datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC)
    assert full == {
        "id": -1,
        "big": Decimal(2**64 - 1),
        "note": None,
        "state": "DONE",
        "lines": [{"sku": "x", "n": 2**32 - 1}],
        "tags": [("a", 1)],
        "card": None,
        "cash": False,
        "limit": 0,
    }
    assert (empty["id"], empty["state"], empty["note"], empty["at"], empty["lines"]) == (
        *(0, "NEW", None, None, []),
    )
    assert nothing is None


def test_enums_that_the_schema_does_not_know_keep_their_number() -> None:
    (row,) = decoder("protobuf", SET, message="shop.Order").decode([b"\x20\x07"])
    assert row.value["state"] == "7"


def test_what_is_no_message_is_bad() -> None:
    made = decoder("protobuf", SET, message="shop.Order")
    rows = made.decode([b"\xff\xff", b"no message", order(id=1).SerializeToString() + b"\x0a"])
    assert all(row.value is None and row.error for row in rows)
    (late,) = made.decode([order(at={"seconds": 10**15}).SerializeToString()])
    assert "does not match the Protobuf schema" in (late.error or "")
    (strict,) = decoder("protobuf", SET, message="old.Strict").decode([b""])
    assert strict.error == "does not match the Protobuf schema: id is missing"


def test_a_number_that_json_has_no_word_for_makes_a_row_bad_and_no_more() -> None:
    made = decoder("protobuf", SET, message="shop.Loose")
    # Loose has one field, so these are its bytes: field 1, then a Value.
    nan, one = (
        b"\x0a\x09" + struct_pb2.Value(number_value=number).SerializeToString()
        for number in (float("nan"), 1.0)
    )
    bad, good = made.decode([nan, one])
    assert "NaN" in (bad.error or "")
    assert good.value == {"any": "1.0"}


def test_the_place_of_the_message_in_its_file_is_checked(tmp_path: Path) -> None:
    written = files()
    del written.file[-1]  # protoc puts the file that it was given last.
    (tmp_path / "1.desc").write_bytes(written.SerializeToString())
    made = decoder(
        "protobuf", SET, message="shop.Order", framing="confluent", registry=str(tmp_path)
    )
    head, value = b"\0\0\0\0\1", order(id=5).SerializeToString()
    # Order is the second message of its file: a list of one, the number 1, both zigzag.
    good, first, torn = made.decode([head + b"\2\2" + value, head + b"\0" + value, head + b"\2"])
    assert good.value["id"] == 5
    assert (first.error or "").startswith("message type is shop.")
    assert "corrupt message indexes" in (torn.error or "")


@given(junk=st.binary(max_size=60))
def test_no_bytes_make_it_raise(junk: bytes) -> None:
    values, errors = decoder("protobuf", SET, message="shop.Order").arrays([junk])
    assert (values[0].as_py() is None) != (errors[0].as_py() is None)


@pytest.mark.parametrize(
    ("schema", "message", "said"),
    [
        (b"\xff", "shop.Order", "not a complete descriptor set"),
        (SET, "shop.Nothing", "no message 'shop.Nothing'"),
        (SET, "shop.Tree", "contains itself"),
        (SET, "", "needs a message name"),
        ("nowhere.desc", "shop.Order", "cannot read"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, message: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        decoder("protobuf", schema, message=message)
