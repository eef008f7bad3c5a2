"""Requests that follow each other on one connection without waiting for answers: each is answered
as if those before it were done, as Kafka does it by serving one at a time."""

from typing import Any

import pytest

from moldau.model.errors import ErrorCode
from moldau.testing.waiting import wait_until
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from raw_client import PRODUCE_BY_NAME, RawClient, batch, produce_request

pytestmark = [pytest.mark.compat, pytest.mark.system]

EARLIEST, LATEST = -2, -1
ROUNDS = 50


def list_offsets(topic: str, timestamp: int) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition])])


def received(raw: RawClient) -> Any:
    """What the one partition of the next answer says."""
    answer: Any = raw.receive()
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.NONE
    return partition


def test_offsets_after_a_produce_include_it(raw: RawClient, topic: str) -> None:
    for number in range(ROUNDS):
        raw.post(produce_request(topic, batch([b"x"])), PRODUCE_BY_NAME)
        raw.post(list_offsets(topic, LATEST))
        assert received(raw).base_offset == number
        assert received(raw).offset == number + 1


def test_offsets_after_a_deletion_are_those_that_are_left(raw: RawClient, topic: str) -> None:
    raw.produce_well(topic, *[b"x"] * ROUNDS)
    for number in range(1, ROUNDS + 1):
        partition = DeleteRecordsPartition(partition_index=0, offset=number)
        deleted = DeleteRecordsTopic(name=topic, partitions=[partition])
        raw.post(DeleteRecordsRequest(topics=[deleted], timeout_ms=60_000))
        raw.post(list_offsets(topic, EARLIEST))
        assert received(raw).low_watermark == number
        assert received(raw).offset == number


def commit(topic: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    committed = OffsetCommitRequestTopic(name=topic, partitions=[partition])
    return OffsetCommitRequest(group_id=topic, member_id="", topics=[committed])


def test_positions_after_a_commit_are_the_committed(raw: RawClient, topic: str) -> None:
    wait_until(
        lambda: (
            raw.request(commit(topic, 0), OffsetCommitResponse, 8)
            .topics[0]
            .partitions[0]
            .error_code
            == ErrorCode.NONE
        ),
        "the topic of groups has a leader",
    )
    for number in range(1, ROUNDS):
        raw.post(commit(topic, number), 8)
        asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        raw.post(OffsetFetchRequest(group_id=topic, topics=[asked]), 7)
        received(raw)
        assert received(raw).committed_offset == number
