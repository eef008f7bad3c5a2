"""Fetch (1): read record batches. Fetch sessions are not kept: the session id is always 0."""

from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TopicId
from moldau.service.fetch import FetchRequest as PartitionFetch
from moldau.service.fetch import FetchResult
from moldau.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from moldau.wire.registry import ApiKey

_TOPIC_IDS_FROM = 13
_WAIT_MS_MAX = 300_000
"""Longer than any client waits for a reply; bounds the timers of forgotten requests."""


def handle(call: Call, request: FetchRequest) -> FetchResponse | None:
    if request.session_id:
        # We hand out no sessions, so this is one of another broker life.
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, topics=[])
    by_id = call.version >= _TOPIC_IDS_FROM
    wanted: list[PartitionFetch] = []
    for topic in request.topics:
        name: str | None = topic.topic
        if by_id:
            found = call.broker.image.topic_by_id(TopicId(topic.topic_id))
            name = found.name if found is not None else None
        for partition in topic.partitions:
            wanted.append(
                PartitionFetch(
                    name,
                    partition.partition,
                    Offset(partition.fetch_offset),
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                )
            )
    operation = _Operation(call, request)
    parked = call.broker.fetch.fetch(
        wanted,
        bytes_min=request.min_bytes,
        bytes_max=request.max_bytes,
        wait_ms_max=min(request.max_wait_ms, _WAIT_MS_MAX),
        on_ready=operation.answer,
    )
    if parked is not None:
        call.defer().on_abandoned = parked.cancel
    return None


class _Operation:
    """A fetch between its request and its response."""

    __slots__ = ("_call", "_request")

    def __init__(self, call: Call, request: FetchRequest) -> None:
        self._call = call
        self._request = request

    def answer(self, results: list[FetchResult]) -> None:
        position = 0
        topics: list[FetchResponseTopic] = []
        for topic in self._request.topics:
            partitions: list[FetchResponsePartition] = []
            for partition in topic.partitions:
                result = results[position]
                position += 1
                partitions.append(
                    FetchResponsePartition(
                        partition_index=partition.partition,
                        error_code=result.error,
                        high_watermark=result.high_watermark,
                        last_stable_offset=result.high_watermark,
                        log_start_offset=result.log_start_offset,
                        records=result.data if result.data is not None else b"",
                    )
                )
            topics.append(
                FetchResponseTopic(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                )
            )
        self._call.reply(FetchResponse(topics=topics))


API = Api(
    key=ApiKey.FETCH,
    request=FetchRequest,
    versions=(4, 18),
    handle=handle,
    note="without fetch sessions (KIP-227): the session id is always 0",
)
