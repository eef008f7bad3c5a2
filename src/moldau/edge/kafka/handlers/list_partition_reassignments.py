"""ListPartitionReassignments (46): the reassignments in progress."""

from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted: dict[tuple[str, int], None] | None = None
    if request.topics is not None:
        # Without duplicates.
        wanted = {
            (each.name, index): None for each in request.topics for index in each.partition_indexes
        }
    try:
        found = call.session.cluster.reassignments(wanted)
    except RefusedError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=str(error), topics=[]
        )
    topics: dict[str, OngoingTopicReassignment] = {}
    for name, partition in found:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OngoingTopicReassignment(name=name, partitions=[])
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=partition.index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
        )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))


API = Api(ListPartitionReassignmentsRequest, versions=(0, 0), handle=handle)
