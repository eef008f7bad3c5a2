"""What applications hand over becomes messages, or is refused in words."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.client.queue import outgoing
from moldau.client.queue.outgoing import Outgoing, encode, encode_acks, encode_any, milliseconds
from moldau.proto.v1 import queue_pb2 as pb


def test_a_message_keeps_all_it_has() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = encode(
        Outgoing(
            value={"id": 7},
            key="k",
            headers={"a": "b", "none": None},
            partition=3,
            timestamp=5,
            deliver_at=at,
        )
    )
    assert (message.value, message.key, message.partition) == (b'{"id":7}', b"k", 3)
    assert [(each.key, each.value, each.HasField("value")) for each in message.headers] == [
        ("a", b"b", True),
        ("none", b"", False),
    ]
    assert (message.timestamp_ms, message.deliver_at_ms) == (5, int(at.timestamp() * 1000))


def test_what_is_not_given_is_not_set() -> None:
    message = encode(Outgoing())
    assert not message.HasField("key")
    assert not message.HasField("value")
    assert not message.HasField("partition")
    assert message.deliver_at_ms == 0


def test_values_and_pairs_are_messages_too() -> None:
    assert encode_any("text").value == b"text"
    pair = encode_any((b"k", [1]))
    assert (pair.key, pair.value) == (b"k", b"[1]")
    assert encode_any(Outgoing("x", partition=1)).partition == 1


@pytest.mark.parametrize(
    "message",
    [
        Outgoing("x", partition=-1),
        Outgoing("x", partition=2**31),
        Outgoing("x", partition=True),
        Outgoing("x", deliver_at=1, delay=1),
        Outgoing("x", delay=-1),
        Outgoing("x", delay=float("nan")),
        Outgoing(object()),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_right_is_refused_with_a_hint(
    message: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "time", SimpleNamespace(time=lambda: 1_000.0))
    with pytest.raises(InvalidArgumentError) as raised:
        encode(message)
    assert raised.value.hint


def test_a_tuple_that_is_no_pair_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="invalid message"):
        encode_any(("a", "b", "c"))


@pytest.mark.parametrize(
    ("acks", "expected"),
    [("all", pb.ACKS_ALL), (1, pb.ACKS_LEADER), ("leader", pb.ACKS_LEADER), (0, pb.ACKS_NONE)],
)
def test_acks_have_several_names(acks: Any, expected: int) -> None:
    assert encode_acks(acks) == expected


def test_acks_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="acks must be"):
        encode_acks("most")


def test_seconds_become_milliseconds_within_bounds() -> None:
    assert milliseconds(1.5, "a wait") == 1500
    with pytest.raises(InvalidArgumentError, match="a wait must be"):
        milliseconds(1e12, "a wait")
