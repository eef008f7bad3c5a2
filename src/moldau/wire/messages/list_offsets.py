"""ListOffsets (2): find offsets by timestamp, or the ends of a partition."""

from moldau.wire.fields import array, i8, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class ListOffsetsPartition(Struct):
    partition_index: int = i32()
    current_leader_epoch: int = i32("4+", default=-1, ignorable=True)
    timestamp: int = i64()


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request, key=2, versions=(1, 10), flexible=6):
    replica_id: int = i32(default=-1)
    isolation_level: int = i8("2+", default=0)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = i32("10+", default=0, ignorable=True)


class ListOffsetsResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)
    timestamp: int = i64(default=-1)
    offset: int = i64(default=-1)
    leader_epoch: int = i32("4+", default=-1)


class ListOffsetsResponseTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsResponsePartition] = array(ListOffsetsResponsePartition)


class ListOffsetsResponse(Response, key=2, versions=(1, 10), flexible=6):
    throttle_time_ms: int = i32("2+", default=0, ignorable=True)
    topics: list[ListOffsetsResponseTopic] = array(ListOffsetsResponseTopic)
