"""OffsetCommit (8): commits offsets of a group."""

from moldau.api.types import OffsetToCommit
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import refuse_too_many, turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TopicPartition
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_TOPIC_IDS_FROM = 10


async def handle(call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse:
    topics: list[OffsetCommitResponseTopic] = []
    offsets: list[OffsetToCommit] = []
    # In the order of `offsets`.
    answers: list[OffsetCommitResponsePartition] = []
    async for topic in turns_of(request.topics):
        name = topic.name if call.version < _TOPIC_IDS_FROM else call.topic_name(topic.topic_id)
        partitions: list[OffsetCommitResponsePartition] = []
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
        for partition in topic.partitions:
            answer = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            partitions.append(answer)
            if name is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            answers.append(answer)
            offsets.append(
                OffsetToCommit(
                    partition=TopicPartition(name, PartitionIndex(partition.partition_index)),
                    offset=Offset(partition.committed_offset),
                    leader_epoch=Epoch(partition.committed_leader_epoch),
                    metadata=partition.committed_metadata or "",
                )
            )
    for answer, error in zip(answers, await _commit(call, request, offsets), strict=True):
        answer.error_code = error
    return OffsetCommitResponse(topics=topics)


async def _commit(
    call: Call, request: OffsetCommitRequest, offsets: list[OffsetToCommit]
) -> list[ErrorCode]:
    if not offsets:
        return []
    try:
        refuse_too_many(len(offsets))
        return await call.session.groups.commit_offsets(
            request.group_id,
            offsets,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time_ms,
        )
    except RefusedError as error:
        return [error.code] * len(offsets)


API = Api(OffsetCommitRequest, versions=(2, 10), handle=handle)
