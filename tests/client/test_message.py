"""A message has attributes, items, text and JSON."""

import pytest
from confluent_kafka import Message as RawMessage

from moldau import InvalidArgumentError, Message
from moldau.client.message import FIELDS, wrap


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
    assert all(made[name] == getattr(made, name) for name in FIELDS)
    for strange in ("_raw", "json", "other"):
        with pytest.raises(KeyError):
            made[strange]


def test_values_are_read_as_text_and_json() -> None:
    assert message("Vltava ž".encode()).text == "Vltava ž"
    assert message(b'{"a": [1]}').json() == {"a": [1]}
    assert message(None).text == ""
    assert message(None).json() is None


def test_what_is_neither_says_which_message_it_was() -> None:
    with pytest.raises(InvalidArgumentError, match=r"t\[1\]@2 .* no text"):
        _ = message(b"\xff").text
    for wrong in (b"{", b"\xff"):
        with pytest.raises(InvalidArgumentError, match=r"t\[1\]@2 .* no JSON"):
            message(wrong).json()
