"""TxnOffsetCommit (28): commits offsets of a group as a part of a transaction.

Up to version 4 the client has added the offsets to its transaction before (AddOffsetsToTxn); from
version 5 on the broker does it.
"""

from moldau.api.types import OffsetToCommit
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import refuse_too_many
from moldau.edge.kafka.txn_errors import producer_error
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import (
    Epoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from moldau.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ADDS_FROM = 5
_LOADING_FROM = 2


async def handle(call: Call, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    offsets = [
        OffsetToCommit(
            partition=TopicPartition(topic.name, PartitionIndex(partition.partition_index)),
            offset=Offset(partition.committed_offset),
            leader_epoch=Epoch(partition.committed_leader_epoch),
            metadata=partition.committed_metadata or "",
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    errors = iter(await _commit(call, request, offsets))
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=_error_for(call, next(errors)),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(
    call: Call, request: TxnOffsetCommitRequest, offsets: list[OffsetToCommit]
) -> list[ErrorCode]:
    if not offsets:
        return []
    try:
        if not request.group_id:
            raise RefusedError(ErrorCode.INVALID_GROUP_ID)
        refuse_too_many(len(offsets))
        return await call.session.transactions.commit_offsets(
            request.transactional_id,
            request.group_id,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            offsets,
            adds=call.version >= _ADDS_FROM,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )
    except RefusedError as error:
        return [error.code] * len(offsets)


def _error_for(call: Call, error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and call.version < _LOADING_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return producer_error(call, error, fenced_from=0, abortable_from=4)


API = Api(TxnOffsetCommitRequest, versions=(0, 5), handle=handle)
