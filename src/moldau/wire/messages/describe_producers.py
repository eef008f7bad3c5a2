"""DescribeProducers (61): active producers of partitions."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class DescribeProducersTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("i32")


class DescribeProducersRequest(Request, key=61, versions=(0, 0), flexible=0):
    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic)


class ProducerState(Struct):
    producer_id: int = i64()
    producer_epoch: int = i32()
    last_sequence: int = i32(default=-1)
    last_timestamp: int = i64(default=-1)
    coordinator_epoch: int = i32()
    current_txn_start_offset: int = i64(default=-1)


class DescribeProducersResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class DescribeProducersResponseTopic(Struct):
    name: str = string()
    partitions: list[DescribeProducersResponsePartition] = array(DescribeProducersResponsePartition)


class DescribeProducersResponse(Response, key=61, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    topics: list[DescribeProducersResponseTopic] = array(DescribeProducersResponseTopic)
