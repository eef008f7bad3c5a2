"""AlterPartitionReassignments (45): move partitions to other brokers, or take a move back.

Answered when the wish is stored. The move itself goes on by itself; ListPartitionReassignments
shows it.
"""

from collections.abc import Coroutine
from typing import Any

from moldau.edge.kafka.api import Api, Call
from moldau.edge.kafka.concurrent_work import run_each
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from moldau.wire.registry import ApiKey


async def handle(
    call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    def reassign(wish: tuple[str, ReassignablePartition]) -> Coroutine[Any, Any, None]:
        name, partition = wish
        return call.broker.cluster.reassign(
            name,
            partition.partition_index,
            partition.replicas,
            allow_replication_factor_change=request.allow_replication_factor_change,
        )

    wishes = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    refusals = iter(await run_each(reassign, wishes, request.timeout_ms))
    responses = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=partition.partition_index)
            refusal = next(refusals)
            if refusal is not None:
                answer.error_code, answer.error_message = refusal.code, str(refusal)
            partitions.append(answer)
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=responses,
    )


API = Api(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    request=AlterPartitionReassignmentsRequest,
    versions=(0, 1),
    handle=handle,
)
