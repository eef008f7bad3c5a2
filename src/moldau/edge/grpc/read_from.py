"""Handler of ReadFrom: reads a partition from an offset or a time on, without a group."""

from typing import Final

from moldau.api.queues import ErrorReason, QueueRefusedError, invalid
from moldau.api.session import Session
from moldau.api.types import EARLIEST, LATEST, bytes_in
from moldau.edge.grpc.calls import Call, Calls
from moldau.edge.grpc.checks import INT_MAX, number, topic_name
from moldau.edge.grpc.messages import write_record
from moldau.model.ids import BrokerId
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import ReadFromRequest, ReadFromResponse
from moldau.records.record import Record

READERS_MAX: Final = 256
RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""Of the messages in one response; a single message may exceed it."""
_RECORDS_PER_READ: Final = 1000
_WAIT_MS: Final = 10_000
"""Longest wait for new messages before the next read."""
_RECORD_BYTES_EXTRA: Final = 64

_STARTS: Final = {
    queue_pb2.START_UNSPECIFIED: EARLIEST,
    queue_pb2.EARLIEST: EARLIEST,
    queue_pb2.LATEST: LATEST,
}


class ReadFromHandler:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._count = 0

    async def read_from(
        self, request: ReadFromRequest, call: Call[ReadFromRequest, ReadFromResponse]
    ) -> None:
        topic = topic_name("topic", request.topic)
        partition = number("partition", request.partition, most=INT_MAX)
        left = number("max_messages", request.max_messages) or None
        offset = _first_offset(call.session, request, topic, partition)
        if self._count >= READERS_MAX:
            raise QueueRefusedError(
                ErrorReason.BUSY,
                f"too many readers on this broker (limit {READERS_MAX}): retry later",
            )
        self._count += 1
        try:
            with self._calls.waiting():
                await self._stream(call, topic, partition, offset, left, follow=request.follow)
        finally:
            self._count -= 1

    async def _stream(
        self,
        call: Call[ReadFromRequest, ReadFromResponse],
        topic: str,
        partition: int,
        offset: int,
        left: int | None,
        *,
        follow: bool,
    ) -> None:
        while True:
            page = await call.session.fetch.read_page(
                topic,
                partition,
                offset,
                limit=_RECORDS_PER_READ if left is None else min(left, _RECORDS_PER_READ),
                wait_ms_max=_WAIT_MS if follow else 0,
                is_stream=True,
            )
            await _write_page(call, topic, partition, page.records, page.next_offset)
            if left is not None:
                left -= len(page.records)
                if left <= 0:
                    return
            if not follow and (page.next_offset >= page.end_offset or page.next_offset == offset):
                return
            offset = page.next_offset


def _first_offset(session: Session, request: ReadFromRequest, name: str, partition: int) -> int:
    """The first offset. Raises RefusedError, QueueRefusedError."""
    topic = session.topics.get(name)
    leader = session.cluster.remote_leader(topic, partition)
    if leader is not None:
        raise QueueRefusedError(
            ErrorReason.NOT_LEADER,
            f"broker {leader} leads {name}-{partition}",
            hint=_hint(session, leader),
        )
    match request.WhichOneof("from"):
        case "offset":
            return number("offset", request.offset)
        case "timestamp_ms":
            timestamp = number("timestamp_ms", request.timestamp_ms)
        case _:
            if request.start not in _STARTS:
                raise invalid(f"start is {request.start}, but must be 1 (EARLIEST) or 2 (LATEST)")
            timestamp = _STARTS[request.start]
    return session.offsets.at(name, partition, timestamp)


def _hint(session: Session, leader: int) -> str:
    known = session.cluster.brokers.get(BrokerId(leader))
    return f"call {known.grpc}" if known is not None and known.grpc is not None else ""


async def _write_page(
    call: Call[ReadFromRequest, ReadFromResponse],
    topic: str,
    partition: int,
    records: list[Record],
    next_offset: int,
) -> None:
    response = ReadFromResponse()
    size = 0
    for record in records:
        bytes_more = _RECORD_BYTES_EXTRA + bytes_in(record)
        if size and size + bytes_more > RESPONSE_BYTES_MAX:
            response.next_offset = record.offset
            await call.write(response)
            response, size = ReadFromResponse(), 0
        write_record(response.messages.add(), topic, partition, record)
        size += bytes_more
    if records:
        response.next_offset = next_offset
        await call.write(response)
