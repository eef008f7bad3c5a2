"""DescribeTransactions (65): state of transactional ids that this broker coordinates."""

from collections import defaultdict
from functools import partial

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import handle_each
from moldau.model.errors import RefusedError
from moldau.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


async def handle(call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    states = await handle_each(request.transactional_ids, partial(_describe, call), _refused)
    return DescribeTransactionsResponse(transaction_states=states)


def _refused(name: str, error: RefusedError) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=error.code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )


def _describe(call: Call, name: str) -> DescribedTransaction:
    try:
        found = call.session.transactions.describe(name)
    except RefusedError as error:
        return _refused(name, error)
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(found.partitions):
        topics[topic].append(index)
    return DescribedTransaction(
        error_code=found.error,
        transactional_id=name,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_at,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            DescribedTransactionTopic(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
        ],
    )


API = Api(DescribeTransactionsRequest, versions=(0, 0), handle=handle)
