"""DescribeProducers (61): producers that partitions remember, and where their transactions began.

A transaction that no coordinator knows any more, and that keeps the last stable offset where it
is, is found by this.
"""

from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    ProducerState,
)
from moldau.wire.registry import ApiKey


def handle(call: Call, request: DescribeProducersRequest) -> DescribeProducersResponse:
    describe = call.broker.offsets.producers
    topics = []
    for topic in request.topics:
        partitions = []
        for index in topic.partition_indexes:
            answer = DescribeProducersResponsePartition(partition_index=index, active_producers=[])
            partitions.append(answer)
            try:
                described = describe(topic.name, index)
            except RefusedError as error:
                answer.error_code = error.code
                answer.error_message = error.message or None
                continue
            answer.active_producers = [
                ProducerState(
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    current_txn_start_offset=each.transaction_start,
                )
                for each in described
            ]
        topics.append(DescribeProducersResponseTopic(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


API = Api(
    key=ApiKey.DESCRIBE_PRODUCERS,
    request=DescribeProducersRequest,
    versions=(0, 0),
    handle=handle,
)
