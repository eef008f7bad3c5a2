"""OffsetDelete (47): delete stored offsets of a group."""

from moldau.wire.fields import array, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = i32()


class OffsetDeleteRequestTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Request, key=47, versions=(0, 0)):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)


class OffsetDeleteResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Response, key=47, versions=(0, 0)):
    error_code: int = i16(default=0)
    throttle_time_ms: int = i32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
