"""The reply to a produce of a single partition: encoded once, then only numbers are filled in.

Un-batched producers send the same request over and over; building and encoding the response was a
third of its cost. The template is made by the ordinary codec, with marks where the numbers go.
"""

import struct

from moldau.model.slices import FileSlice
from moldau.wire.framing import frame_response
from moldau.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from moldau.wire.registry import ApiKey

_MARK = 0x0123456789ABCDEF
_LOG_START_FROM = 5
_CORRELATION_AT = 4
_TEMPLATES_MAX = 4096

_pack_correlation = struct.Struct(">i").pack_into
_pack_old = struct.Struct(">qq").pack_into
_pack_numbers = struct.Struct(">qqq").pack_into

_templates: dict[tuple[int, str, int], tuple[bytes, int]] = {}


def single_reply(
    version: int,
    topic: str,
    partition: int,
    correlation_id: int,
    base_offset: int,
    append_time: int,
    start_offset: int,
) -> bytearray:
    """The whole frame of a successful append at `base_offset`."""
    template = _templates.get((version, topic, partition))
    if template is None:
        template = _make_template(version, topic, partition)
    reply = bytearray(template[0])
    _pack_correlation(reply, _CORRELATION_AT, correlation_id)
    if version >= _LOG_START_FROM:
        _pack_numbers(reply, template[1], base_offset, append_time, start_offset)
    else:
        _pack_old(reply, template[1], base_offset, append_time)
    return reply


def _make_template(version: int, topic: str, partition: int) -> tuple[bytes, int]:
    answer = ProduceResponsePartition(
        index=partition, base_offset=_MARK, log_append_time_ms=_MARK, log_start_offset=_MARK
    )
    response = ProduceResponse(topics=[ProduceResponseTopic(name=topic, partitions=[answer])])
    chunks = frame_response(ApiKey.PRODUCE, version, 0, response.encode(version))
    frame = b"".join(chunk for chunk in chunks if not isinstance(chunk, FileSlice))
    marks = _MARK.to_bytes(8, "big") * (3 if version >= _LOG_START_FROM else 2)
    # The last match: a topic name may look like the marks, but comes before them.
    template = (frame, frame.rindex(marks))
    if len(_templates) >= _TEMPLATES_MAX:
        _templates.clear()
    _templates[version, topic, partition] = template
    return template
