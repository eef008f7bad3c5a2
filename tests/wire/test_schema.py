"""Classes made of declared fields: constructor, defaults, comparison, text."""

import pytest
from chunks import joined

from moldau.wire.fields import Versions, array, i32, parse_versions, string
from moldau.wire.schema import Request, Struct


class Item(Struct):
    number: int = i32()
    text: str | None = string("2+", nullable="2+", default=None)


class Sample(Request, key=7, versions=(1, 4), flexible=3):
    items: list[Item] = array(Item, default=())
    count: int = i32(default=-1)


def test_fields_are_slots_and_nothing_else_can_be_set() -> None:
    item = Item(number=1)
    with pytest.raises(AttributeError):
        item.other = 2  # type: ignore[attr-defined]
    assert not hasattr(item, "__dict__")


def test_a_field_without_default_must_be_given() -> None:
    for _ in range(2):  # the first call compiles, the second does not
        with pytest.raises(TypeError, match="number"):
            Item()  # type: ignore[call-arg]


def test_unknown_and_positional_arguments_are_refused() -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            Item(number=1, colour=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Item(1)  # type: ignore[call-arg]


def test_each_instance_gets_a_list_of_its_own() -> None:
    first, second = Sample(), Sample()
    first.items.append(Item(number=1))
    assert second.items == []
    assert second.count == -1


def test_instances_are_compared_by_value() -> None:
    assert Sample(items=[Item(number=1)]) == Sample(items=[Item(number=1)])
    assert Sample(items=[Item(number=1)]) != Sample(items=[Item(number=2)])
    assert Item(number=1) != 1
    with pytest.raises(TypeError):
        hash(Item(number=1))


def test_the_text_of_an_instance_shows_its_fields() -> None:
    assert repr(Sample(items=[Item(number=1)])) == (
        "Sample(items=[Item(number=1, text=None)], count=-1)"
    )


def test_class_arguments_become_attributes() -> None:
    assert Sample.API_KEY == 7
    assert Sample.VERSIONS == (1, 4)
    assert Sample.FLEXIBLE == 3


def test_a_declared_message_can_be_encoded_and_decoded() -> None:
    message = Sample(items=[Item(number=5, text="x")], count=2)
    assert message.encode(2) == [b"\0\0\0\1\0\0\0\5\0\1x\0\0\0\2"]
    assert message.encode(3) == [b"\2\0\0\0\5\2x\0\0\0\0\2\0"]
    assert Sample.decode(memoryview(joined(message.encode(3))), 3) == message


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3+", 3, 32767), ("0-12", 0, 12), ("7", 7, 7)]
)
def test_versions_are_read_as_kafka_writes_them(text: str, first: int, last: int) -> None:
    versions = parse_versions(text)
    assert versions == Versions(first, last)
    assert first in versions
    assert last in versions
    assert first - 1 not in versions
    assert last + 1 not in versions


def test_no_version_is_in_none() -> None:
    assert not any(version in parse_versions("none") for version in range(-2, 10))
