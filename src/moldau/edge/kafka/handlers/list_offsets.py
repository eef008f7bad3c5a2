"""ListOffsets (2): the first and last offsets of partitions, and offsets by timestamp."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

_READ_COMMITTED = 1
_EPOCHS_FROM = 4
_NOT_AVAILABLE_FROM = 5


@in_turns
def handle(call: Call, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    find = call.session.offsets.list_offset
    reads_committed = request.isolation_level == _READ_COMMITTED
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            yield
            answer = ListOffsetsResponsePartition(partition_index=partition.partition_index)
            try:
                found = find(
                    topic.name,
                    partition.partition_index,
                    partition.timestamp,
                    partition.current_leader_epoch,
                    reads_committed=reads_committed,
                )
            except RefusedError as error:
                answer.error_code = error.code
                if (
                    error.code is ErrorCode.OFFSET_NOT_AVAILABLE
                    and call.version < _NOT_AVAILABLE_FROM
                ):
                    # Older clients do not know that code, and would fail.
                    answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                answer.offset, answer.timestamp = found.offset, found.timestamp
                if call.version >= _EPOCHS_FROM:
                    answer.leader_epoch = found.epoch
            partitions.append(answer)
        topics.append(ListOffsetsResponseTopic(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


API = Api(ListOffsetsRequest, versions=(1, 10), handle=handle)
