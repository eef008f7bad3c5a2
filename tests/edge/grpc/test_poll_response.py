"""Responses of polls, as protobuf decodes them."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.api.queues import Delivery, PollResult
from moldau.edge.grpc.poll_response import encode_poll_response
from moldau.proto.v1.queue_pb2 import Message, PollResponse
from moldau.records.record import Record

_numbers = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 2**14, 2**21 - 1, 2**21])
_contents = st.none() | st.binary(max_size=300)
_deliveries = st.builds(
    Delivery,
    st.sampled_from(["t", "topic-" * 30]),
    st.integers(0, 2**31 - 1),
    st.builds(
        Record,
        _numbers,
        _numbers | st.just(-1),
        _contents,
        _contents,
        st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), _contents)),
    ),
    st.binary(max_size=50),
    st.integers(0, 2**31 - 1),
    _numbers,
)


def expected(delivery: Delivery) -> Message:
    record = delivery.record
    message = Message(
        topic=delivery.topic,
        partition=delivery.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        token=delivery.token,
        attempt=delivery.attempt,
        lease_until_ms=delivery.lease_until,
    )
    for name, value in record.headers:
        message.headers.add(key=name, value=value)
    return message


@given(st.lists(_deliveries, max_size=5), st.booleans())
def test_a_response_has_what_protobuf_would_encode(
    deliveries: list[Delivery], is_full: bool
) -> None:
    repeated = [each for delivery in deliveries for each in (delivery, delivery)]
    encoded = encode_poll_response(PollResult(deliveries=repeated, is_full=is_full))
    decoded = PollResponse.FromString(encoded)
    assert decoded == PollResponse(messages=map(expected, repeated), is_full=is_full)


def test_an_empty_response_has_no_bytes() -> None:
    assert encode_poll_response(PollResult()) == b""
