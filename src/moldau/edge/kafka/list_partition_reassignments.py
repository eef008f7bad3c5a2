"""ListPartitionReassignments (46): the moves of partitions that are under way."""

from moldau.edge.kafka.api import Api, Call
from moldau.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from moldau.wire.registry import ApiKey


def handle(
    call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for asked in request.topics:
            wanted.setdefault(asked.name, []).extend(asked.partition_indexes)
        # Each once, however often it is named.
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


API = Api(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    request=ListPartitionReassignmentsRequest,
    versions=(0, 0),
    handle=handle,
)
