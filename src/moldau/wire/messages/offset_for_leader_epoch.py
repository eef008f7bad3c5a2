"""OffsetForLeaderEpoch (23): where a leader epoch ended in a partition."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class OffsetForLeaderPartition(Struct):
    partition: int = i32()
    current_leader_epoch: int = i32("2+", default=-1, ignorable=True)
    leader_epoch: int = i32()


class OffsetForLeaderTopic(Struct):
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request, key=23, versions=(0, 4), flexible=4):
    replica_id: int = i32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class OffsetForLeaderPartitionResult(Struct):
    error_code: int = i16(default=0)
    partition: int = i32()
    leader_epoch: int = i32("1+", default=-1, ignorable=True)
    end_offset: int = i64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = string()
    partitions: list[OffsetForLeaderPartitionResult] = array(OffsetForLeaderPartitionResult)


class OffsetForLeaderEpochResponse(Response, key=23, versions=(0, 4), flexible=4):
    throttle_time_ms: int = i32("2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
