"""Kafka frames for the raw loads: built once with the product's codec, sent many times.

The versions are those that librdkafka 2.16 asks for where their frames hold the topic's name.
"""

from __future__ import annotations

import time

from moldau.model.ids import Offset, TimestampMs
from moldau.model.slices import Chunk, FileSlice
from moldau.records.batch import HEADER_BYTES, read_header
from moldau.records.record import Record, build_batch
from moldau.wire.framing import frame_request, frame_response, read_response_header
from moldau.wire.messages.api_versions import ApiVersionsRequest
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from moldau.wire.schema import Request

CLIENT_ID = "moldau-bench"
PRODUCE_VERSION = 10
FETCH_VERSION = 12


def record_batch(values: list[bytes]) -> bytes:
    """A batch without keys, headers and compression."""
    now = TimestampMs(int(time.time() * 1000))
    return build_batch([Record(Offset(0), now, None, value, []) for value in values])


def _join(chunks: list[Chunk]) -> bytes:
    """One piece of memory; a frame built here never holds a slice of a file."""
    return b"".join(chunk for chunk in chunks if not isinstance(chunk, FileSlice))


def _frame(message: Request, version: int) -> bytes:
    return _join(frame_request(message, version, 7, CLIENT_ID))


def api_versions() -> bytes:
    return _frame(ApiVersionsRequest(), 0)


def produce(topic: str, partition: int, batch: bytes, *, acks: int) -> bytes:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topics=[
            ProduceTopic(name=topic, partitions=[ProducePartition(index=partition, records=batch)])
        ],
    )
    return _frame(request, PRODUCE_VERSION)


def _reply(topic: str, error: int) -> bytes:
    partition = ProduceResponsePartition(index=0, base_offset=0, error_code=error)
    response = ProduceResponse(topics=[ProduceResponseTopic(name=topic, partitions=[partition])])
    body = response.encode(PRODUCE_VERSION)
    return _join(frame_response(response.API_KEY, PRODUCE_VERSION, 7, body))


def produce_reply_bytes(topic: str) -> int:
    """The size of a whole reply frame to `produce` that says that all went well."""
    return len(_reply(topic, 0))


def produce_error_at(topic: str) -> int:
    """Where the error code stands in such a frame: there two replies first differ."""
    well, failed = _reply(topic, 0), _reply(topic, 0x7F7F)
    return next(at for at, pair in enumerate(zip(well, failed, strict=True)) if len(set(pair)) > 1)


def describe_produce_reply(frame: bytes) -> str:
    """What a reply frame says, for the message of an error."""
    view = memoryview(frame)[4:]
    _, body_at = read_response_header(view, ProduceResponse.API_KEY, PRODUCE_VERSION)
    return repr(ProduceResponse.decode(view, PRODUCE_VERSION, body_at))


def fetch(
    topic: str, offsets: dict[int, int], *, bytes_max: int, partition_bytes_max: int
) -> bytes:
    partitions = [
        FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=partition_bytes_max
        )
        for partition, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=bytes_max,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )
    return _frame(request, FETCH_VERSION)


def parse_fetch(reply: memoryview) -> list[tuple[int, int, memoryview]]:
    """(partition, error, records) of a reply, which comes without its length."""
    _, body_at = read_response_header(reply, FetchResponse.API_KEY, FETCH_VERSION)
    response = FetchResponse.decode(reply, FETCH_VERSION, body_at)
    if response.error_code:
        return [(-1, response.error_code, reply[:0])]
    found = []
    for topic in response.topics:
        for partition in topic.partitions:
            records = partition.records
            view = reply[:0] if not isinstance(records, memoryview) else records
            found.append((partition.partition_index, partition.error_code, view))
    return found


def offset_after(records: memoryview, start: int) -> tuple[int, int]:
    """(next offset to fetch, records) after the whole batches in `records`."""
    position, following, count = 0, start, 0
    while position + HEADER_BYTES <= len(records):
        header = read_header(records, position)
        if position + header.size > len(records):
            break
        following = header.next_offset
        count += header.record_count
        position += header.size
    return following, count
