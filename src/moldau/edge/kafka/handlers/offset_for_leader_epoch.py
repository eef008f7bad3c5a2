"""OffsetForLeaderEpoch (23): where a leader epoch ended in a partition."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.model.errors import RefusedError
from moldau.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResult,
    OffsetForLeaderTopicResult,
)


@in_turns
def handle(call: Call, request: OffsetForLeaderEpochRequest) -> Steps[OffsetForLeaderEpochResponse]:
    find = call.session.offsets.epoch_end
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            yield
            result = OffsetForLeaderPartitionResult(partition=partition.partition)
            partitions.append(result)
            try:
                result.leader_epoch, result.end_offset = find(
                    topic.topic,
                    partition.partition,
                    partition.leader_epoch,
                    partition.current_leader_epoch,
                )
            except RefusedError as error:
                result.error_code = error.code
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


API = Api(OffsetForLeaderEpochRequest, versions=(0, 4), handle=handle)
