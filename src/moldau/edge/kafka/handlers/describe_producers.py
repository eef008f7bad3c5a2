"""DescribeProducers (61): active producers of partitions, and where their transactions started.

Finds hanging transactions, which no coordinator knows and which block the last stable offset.
"""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.model.errors import RefusedError
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    ProducerState,
)


@in_turns
def handle(call: Call, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
    describe = call.session.offsets.producers
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        partitions = []
        for index in indexes:
            yield
            answer = DescribeProducersResponsePartition(partition_index=index, active_producers=[])
            partitions.append(answer)
            try:
                described = describe(name, index)
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
        topics.append(DescribeProducersResponseTopic(name=name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


API = Api(DescribeProducersRequest, versions=(0, 0), handle=handle)
