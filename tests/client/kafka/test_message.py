"""A message has attributes, items, text and JSON."""

import copy
import pickle

import pytest
from confluent_kafka import Message as RawMessage

from moldau import InvalidArgumentError, Message
from moldau.client.kafka.message import wrap


def message(value: bytes | None) -> Message:
    (made,) = wrap(
        [RawMessage(topic="t", partition=1, offset=2, key=b"k", value=value, timestamp=(1, 1500))]
    )
    return made


def test_items_are_the_attributes() -> None:
    made = message(b"v")
    assert dict(made) == {
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "key": b"k",
        "value": b"v",
        "headers": [],
        "timestamp": 1500,
    }
    assert all(made[name] == getattr(made, name) for name in Message.FIELDS)
    for strange in ("_raw", "json", "other"):
        with pytest.raises(KeyError):
            made[strange]


def test_values_are_read_as_text_and_json() -> None:
    assert message("Vltava ž".encode()).text == "Vltava ž"
    assert message(b'{"a": [1]}').json() == {"a": [1]}
    assert message(None).text == ""
    assert message(None).json() is None


def test_what_is_neither_says_which_message_it_was() -> None:
    with pytest.raises(InvalidArgumentError, match=r"t\[1\]@2 .* not UTF-8"):
        _ = message(b"\xff").text
    for wrong in (b"{", b"\xff"):
        with pytest.raises(InvalidArgumentError, match=r"t\[1\]@2 .* not JSON"):
            message(wrong).json()


def test_a_message_is_pickled_and_copied_with_all_it_has() -> None:
    made = message(b"v")
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert type(again) is Message
        assert dict(again) == dict(made)
        assert again.time == made.time
        assert repr(again) == repr(made)
    # A second time too, from what is no message of librdkafka's any more.
    assert dict(pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(made))))) == dict(made)


def test_a_message_is_made_by_hand_for_tests() -> None:
    made = Message.of("t", b'{"a": 1}', key=b"k", headers=[("h", b"1")], timestamp=1500)
    assert made.json() == {"a": 1}
    assert (made.partition, made.offset, made.key, made.timestamp) == (0, 0, b"k", 1500)
    assert made.headers == [("h", b"1")]


def test_a_message_cannot_be_changed() -> None:
    made = message(b"v")
    for name in ("value", "topic"):
        with pytest.raises(AttributeError):
            setattr(made, name, b"w")


def test_a_repr_says_where_it_is_and_how_large_but_no_data() -> None:
    assert repr(message(b"secret")) == "<Message t[1]@2 6 bytes>"
    assert repr(message(b"")) == "<Message t[1]@2 0 bytes>"
    assert repr(message(None)) == "<Message t[1]@2 tombstone>"
