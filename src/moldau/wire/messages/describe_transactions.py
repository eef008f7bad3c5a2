"""DescribeTransactions (65): state of transactions by transactional id."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class DescribeTransactionsRequest(Request, key=65, versions=(0, 0), flexible=0):
    transactional_ids: list[str] = array("string")


class DescribedTransactionTopic(Struct):
    topic: str = string()
    partitions: list[int] = array("i32")


class DescribedTransaction(Struct):
    error_code: int = i16(default=0)
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = i32()
    transaction_start_time_ms: int = i64()
    producer_id: int = i64()
    producer_epoch: int = i16()
    topics: list[DescribedTransactionTopic] = array(DescribedTransactionTopic)


class DescribeTransactionsResponse(Response, key=65, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction)
