"""WriteTxnMarkers (27): an administrator aborts a hanging transaction.

Brokers use their own RPC for markers, so only aborts are accepted here.
"""

from functools import partial

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import query_each, turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(call: Call, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[await _write(call, marker) async for marker in turns_of(request.markers)]
    )


async def _write(call: Call, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    partitions = [
        TopicPartition(topic.name, PartitionIndex(index))
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    if marker.transaction_result:
        codes = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(partitions)
    else:
        codes = await query_each(
            partitions, partial(_abort, call, marker), lambda _, error: error.code
        )
    outcome = iter(codes)
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=next(outcome)
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


async def _abort(call: Call, marker: WritableTxnMarker, partition: TopicPartition) -> ErrorCode:
    try:
        return await call.session.transactions.abort_hanging(
            partition, ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch)
        )
    except RefusedError as error:
        return error.code


API = Api(
    WriteTxnMarkersRequest,
    versions=(1, 2),
    handle=handle,
    note="only aborts, for the AdminClient; brokers use their own RPC",
)
