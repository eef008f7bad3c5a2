"""OffsetCommit (8): store the offsets of a group."""

from moldau.wire.fields import ZERO_UUID, array, i16, i32, i64, string, uuid
from moldau.wire.schema import Request, Response, Struct


class OffsetCommitRequestPartition(Struct):
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32("6+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = string("0-9", default="", ignorable=True)
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request, key=8, versions=(2, 10), flexible=8):
    group_id: str = string()
    generation_id_or_member_epoch: int = i32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("7+", nullable="0+", default=None)
    retention_time_ms: int = i64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = string("0-9", default="", ignorable=True)
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, key=8, versions=(2, 10), flexible=8):
    throttle_time_ms: int = i32("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
