"""TxnOffsetCommit (28): store the offsets of a group as part of a transaction."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request, key=28, versions=(0, 5), flexible=3):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    generation_id: int = i32("3+", default=-1)
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="0+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, key=28, versions=(0, 5), flexible=3):
    throttle_time_ms: int = i32(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
