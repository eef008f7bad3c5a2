"""DescribeTransactions (65): state of transactional ids that this broker coordinates."""

from collections import defaultdict

from moldau.edge.kafka.api import Api, Call
from moldau.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.wire.registry import ApiKey


def handle(call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(call, name) for name in request.transactional_ids]
    )


def _describe(call: Call, name: str) -> DescribedTransaction:
    found = call.broker.transactions.describe(name)
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


API = Api(
    key=ApiKey.DESCRIBE_TRANSACTIONS,
    request=DescribeTransactionsRequest,
    versions=(0, 0),
    handle=handle,
)
