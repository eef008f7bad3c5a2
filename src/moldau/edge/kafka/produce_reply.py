"""The reply to a produce of a single partition: encoded once, then only numbers are filled in.

Un-batched producers send the same request over and over; building and encoding the response was a
third of its cost. The template is made by the ordinary codec, with marks where the numbers go.
"""

import struct
from typing import Final

from moldau.model.slices import FileSlice
from moldau.wire.framing import frame_response
from moldau.wire.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from moldau.wire.registry import ApiKey

_MARK: Final = 0x0123456789ABCDEF
_LOG_START_FROM: Final = 5
_CORRELATION_AT: Final = 4
_CORRELATION_END: Final = 8
_TEMPLATES_MAX = 4096


class ReplyTemplate:
    """A frame, in the parts that are between the numbers."""

    __slots__ = ("_between", "_has_start", "_head", "_pack", "_tail")

    def __init__(self, frame: bytes, numbers_at: int, numbers: int) -> None:
        tail_at = numbers_at + numbers * 8
        self._head = frame[:_CORRELATION_AT]
        self._between = frame[_CORRELATION_END:numbers_at]
        self._tail = frame[tail_at:]
        self._has_start = numbers > 2
        between, tail = len(self._between), len(self._tail)
        # One call for all of it.
        self._pack = struct.Struct(f">4si{between}s{numbers}q{tail}s").pack

    def fill(
        self, correlation_id: int, base_offset: int, append_time: int, start_offset: int
    ) -> bytes:
        """The whole frame of a successful append at `base_offset`."""
        if self._has_start:
            return self._pack(
                self._head,
                correlation_id,
                self._between,
                base_offset,
                append_time,
                start_offset,
                self._tail,
            )
        return self._pack(
            self._head, correlation_id, self._between, base_offset, append_time, self._tail
        )


_templates: Final[dict[tuple[int, str, bytes, int], ReplyTemplate]] = {}


def template_of(version: int, topic: str, topic_id: bytes, partition: int) -> ReplyTemplate:
    key = (version, topic, topic_id, partition)
    template = _templates.get(key)
    if template is None:
        template = _make_template(version, topic, topic_id, partition)
        if len(_templates) >= _TEMPLATES_MAX:
            _templates.clear()
        _templates[key] = template
    return template


def _make_template(version: int, topic: str, topic_id: bytes, partition: int) -> ReplyTemplate:
    answer = ProduceResponsePartition(
        index=partition, base_offset=_MARK, log_append_time_ms=_MARK, log_start_offset=_MARK
    )
    topics = [ProduceResponseTopic(name=topic, topic_id=topic_id, partitions=[answer])]
    response = ProduceResponse(topics=topics)
    chunks = frame_response(ApiKey.PRODUCE, version, 0, response.encode(version))
    frame = b"".join(chunk for chunk in chunks if not isinstance(chunk, FileSlice))
    numbers = 3 if version >= _LOG_START_FROM else 2
    # The last match: a topic name may look like the marks, but comes before them.
    return ReplyTemplate(frame, frame.rindex(_MARK.to_bytes(8, "big") * numbers), numbers)
