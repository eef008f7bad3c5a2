"""AlterPartitionReassignments (45): moves partitions to other brokers, or cancels a move.

Replies when the desired replicas are stored. The move runs in the background;
ListPartitionReassignments shows it.
"""

from collections.abc import Coroutine
from typing import Any

from moldau.edge.concurrent_work import run_each
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode
from moldau.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    def reassign(desired: tuple[str, ReassignablePartition]) -> Coroutine[Any, Any, None]:
        name, partition = desired
        return call.session.cluster.reassign(
            name,
            partition.partition_index,
            partition.replicas,
            allow_replication_factor_change=request.allow_replication_factor_change,
        )

    desired = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    found = await run_each(reassign, desired, request.timeout_ms)
    for refused in found:
        if refused is not None and refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # The same for all of them; as in Kafka, an error of the whole request.
            return AlterPartitionReassignmentsResponse(
                error_code=refused.code, error_message=str(refused), responses=[]
            )
    refusals = iter(found)
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
        allow_replication_factor_change=request.allow_replication_factor_change, responses=responses
    )


API = Api(AlterPartitionReassignmentsRequest, versions=(0, 1), handle=handle)
