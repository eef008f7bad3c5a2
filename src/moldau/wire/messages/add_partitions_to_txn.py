"""AddPartitionsToTxn (24): add partitions to transactions; several transactions since version 4."""

from moldau.wire.fields import array, boolean, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class AddPartitionsToTxnTopic(Struct):
    name: str = string()
    partitions: list[int] = array("i32")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    verify_only: bool = boolean(default=False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Request, key=24, versions=(0, 5), flexible=3):
    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, "4+", default=()
    )
    v3_and_below_transactional_id: str = string("0-3", default="")
    v3_and_below_producer_id: int = i64("0-3", default=0)
    v3_and_below_producer_epoch: int = i16("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "0-3", default=()
    )


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = i32()
    partition_error_code: int = i16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(Response, key=24, versions=(0, 5), flexible=3):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16("4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, "4+", default=()
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3", default=()
    )
