"""DeleteRecords (21): moves the start offset of partitions forward."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import RefusedError
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_WATERMARK = -1


async def handle(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    delete = call.session.topics.delete_records
    topics = []
    async for topic in turns_of(request.topics):
        partitions = []
        async for partition in turns_of(topic.partitions):
            result = DeleteRecordsPartitionResult(
                partition_index=partition.partition_index, low_watermark=_NO_WATERMARK
            )
            partitions.append(result)
            try:
                result.low_watermark = await delete(
                    topic.name, partition.partition_index, partition.offset
                )
            except RefusedError as error:
                result.error_code = error.code
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


API = Api(DeleteRecordsRequest, versions=(0, 2), handle=handle)
