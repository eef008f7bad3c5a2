"""OffsetDelete (47): deletes committed offsets of a group."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import refuse_too_many
from moldau.model.errors import RefusedError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    partitions = [
        TopicPartition(topic.name, PartitionIndex(partition.partition_index))
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        refuse_too_many(len(partitions))
        errors = iter(await call.session.groups.delete_offsets(request.group_id, partitions))
    except RefusedError as error:
        return OffsetDeleteResponse(error_code=error.code, topics=[])
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=next(errors)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(OffsetDeleteRequest, versions=(0, 0), handle=handle)
