"""The outer form of a delivery's token."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.model.delivery_tokens import (
    DeliveryToken,
    TokenKind,
    decode_delivery_token,
    encode_delivery_token,
)
from moldau.model.ids import PartitionIndex, TopicId

KINDS = st.sampled_from(TokenKind)


@given(KINDS, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1), st.binary())
def test_a_ticket_is_read_as_it_was_written(
    kind: TokenKind, topic: bytes, partition: int, rest: bytes
) -> None:
    ticket = DeliveryToken(kind, TopicId(topic), PartitionIndex(partition), rest)
    data = encode_delivery_token(ticket)
    assert decode_delivery_token(data) == ticket
    # As the .proto file tells those who route.
    assert data[1:17] == topic
    assert int.from_bytes(data[17:21], "big") == partition


@given(st.binary(max_size=60))
def test_any_bytes_are_a_ticket_that_is_written_the_same_or_none(data: bytes) -> None:
    ticket = decode_delivery_token(data)
    assert ticket is None or encode_delivery_token(ticket) == data
