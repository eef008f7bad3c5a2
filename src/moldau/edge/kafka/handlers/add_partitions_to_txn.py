"""AddPartitionsToTxn (24): adds partitions to a producer's transaction.

Versions from 4 on are for brokers only; Moldau brokers use their own RPC.
"""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import refuse_too_many
from moldau.edge.kafka.txn_errors import producer_error
from moldau.model.errors import RefusedError
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)


async def handle(call: Call, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    wanted = [
        TopicPartition(topic.name, PartitionIndex(index))
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    try:
        refuse_too_many(len(wanted))
        errors = await call.session.transactions.add_partitions(
            request.v3_and_below_transactional_id,
            ProducerId(request.v3_and_below_producer_id),
            ProducerEpoch(request.v3_and_below_producer_epoch),
            wanted,
        )
    except RefusedError as error:
        errors = dict.fromkeys(wanted, error.code)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=producer_error(
                            call,
                            errors[TopicPartition(topic.name, PartitionIndex(index))],
                            fenced_from=2,
                            abortable_from=5,
                        ),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


API = Api(AddPartitionsToTxnRequest, versions=(0, 3), handle=handle)
