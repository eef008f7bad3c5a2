"""What brokers send each other to relay a request: whole, and understood by older ones."""

import msgspec
from relay_world import opening

from moldau.edge.http.relay.messages import (
    IDLE_SECONDS_MAX,
    WAIT_SECONDS,
    Part,
    Pull,
    decode_opening,
    decode_part,
    decode_pull,
    encode,
)


def test_what_is_sent_arrives() -> None:
    for message, decode in (
        (opening(2**62, body=bytes(range(256)), headers=[(b"a", b"\xff")]), decode_opening),
        (Pull(exchange=7), decode_pull),
        (Part(), decode_part),
        (Part(status=503, headers=[(b"a", b"\xff")], body=b"x", is_cut=True), decode_part),
    ):
        assert decode(encode(message)) == message


def test_a_newer_broker_may_say_more() -> None:
    more = msgspec.msgpack.decode(encode(opening())) | {"more": 1}
    assert decode_opening(encode(more)) == opening()
    assert decode_part(encode({"status": 200, "more": [1]})).status == 200


def test_who_waits_for_a_part_is_not_idle() -> None:
    assert WAIT_SECONDS < IDLE_SECONDS_MAX / 2
