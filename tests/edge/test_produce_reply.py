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

LIKE_NUMBERS = (0x0123456789ABCDEF).to_bytes(8, "big").decode("latin-1") * 3


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("topic", ["t", "a-longer.name_1", "x" * 249, LIKE_NUMBERS])
def test_it_equals_the_encoded_response(version: int, topic: str) -> None:
    for correlation, offset, time, start in [
        (0, 0, -1, 0),
        (2**31 - 1, 2**62, 1_700_000_000_000, 9),
    ]:
        answer = ProduceResponsePartition(
            index=5, base_offset=offset, log_append_time_ms=time, log_start_offset=start
        )
        response = ProduceResponse(topics=[ProduceResponseTopic(name=topic, partitions=[answer])])
        chunks = frame_response(ApiKey.PRODUCE, version, correlation, response.encode(version))
        expected = joined(chunks)
        for _ in range(2):
            got = template_of(version, topic, 5).fill(correlation, offset, time, start)
            assert got == expected
