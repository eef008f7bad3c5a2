"""ListPartitionReassignments (46): the reassignments in progress."""

from moldau.edge.kafka.handler import Api, Call
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for each in request.topics:
            wanted.setdefault(each.name, []).extend(each.partition_indexes)
        # Without duplicates.
        wanted = {name: list(dict.fromkeys(indexes)) for name, indexes in wanted.items()}
    topics: dict[str, OngoingTopicReassignment] = {}
    for move in call.broker.cluster.reassignments(wanted):
        topic = topics.get(move.topic)
        if topic is None:
            topic = topics[move.topic] = OngoingTopicReassignment(name=move.topic, partitions=[])
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=move.partition,
                replicas=list(move.replicas),
                adding_replicas=list(move.adding),
                removing_replicas=list(move.removing),
            )
        )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))


API = Api(ListPartitionReassignmentsRequest, versions=(0, 0), handle=handle)
