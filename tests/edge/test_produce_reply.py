"""The template of a produce reply gives the bytes that the codec gives."""

import pytest
from chunks import joined

from moldau.edge.kafka.produce_reply import template_of
from moldau.wire.framing import frame_response
from moldau.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from moldau.wire.registry import ApiKey

MARK = (0x0123456789ABCDEF).to_bytes(8, "big")
LIKE_NUMBERS = MARK.decode("latin-1") * 3


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize(
    ("topic", "topic_id"),
    [
        ("t", b"an id of 16 byte"),
        ("a-longer.name_1", b"another of 16 by"),
        ("x" * 249, bytes(16)),
        (LIKE_NUMBERS, MARK * 2),
    ],
)
def test_it_equals_the_encoded_response(version: int, topic: str, topic_id: bytes) -> None:
    for correlation, offset, time, start in [
        (0, 0, -1, 0),
        (2**31 - 1, 2**62, 1_700_000_000_000, 9),
    ]:
        answer = ProduceResponsePartition(
            index=5, base_offset=offset, log_append_time_ms=time, log_start_offset=start
        )
        topics = [ProduceResponseTopic(name=topic, topic_id=topic_id, partitions=[answer])]
        response = ProduceResponse(topics=topics)
        chunks = frame_response(ApiKey.PRODUCE, version, correlation, response.encode(version))
        expected = joined(chunks)
        for _ in range(2):
            template = template_of(version, topic if version < 13 else "", topic_id, 5)
            assert template.fill(correlation, offset, time, start) == expected
