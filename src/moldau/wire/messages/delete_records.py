"""DeleteRecords (21): move the start of partitions forward."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class DeleteRecordsPartition(Struct):
    partition_index: int = i32()
    offset: int = i64()


class DeleteRecordsTopic(Struct):
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(Request, key=21, versions=(0, 2), flexible=2):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = i32()


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = i32()
    low_watermark: int = i64()
    error_code: int = i16(default=0)


class DeleteRecordsTopicResult(Struct):
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Response, key=21, versions=(0, 2), flexible=2):
    throttle_time_ms: int = i32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
