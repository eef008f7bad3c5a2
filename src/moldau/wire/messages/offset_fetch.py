"""OffsetFetch (9): read the stored offsets of one group, or of several since version 8."""

from moldau.wire.fields import ZERO_UUID, array, boolean, i16, i32, i64, string, uuid
from moldau.wire.schema import Request, Response, Struct


class OffsetFetchRequestTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("i32")


class OffsetFetchRequestGroupTopic(Struct):
    name: str = string("8-9", default="", ignorable=True)
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: list[int] = array("i32")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string()
    member_id: str | None = string("9+", nullable="0+", default=None, ignorable=True)
    member_epoch: int = i32("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestGroupTopic] | None = array(
        OffsetFetchRequestGroupTopic, nullable="0+"
    )


class OffsetFetchRequest(Request, key=9, versions=(1, 10), flexible=6):
    group_id: str = string("0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7", default=()
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+", default=())
    require_stable: bool = boolean("7+", default=False)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32("5-7", default=-1, ignorable=True)
    metadata: str | None = string(nullable="0-7")
    error_code: int = i16(default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponseGroupPartition(Struct):
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32(default=-1)
    metadata: str | None = string(nullable="0+")
    error_code: int = i16(default=0)


class OffsetFetchResponseGroupTopic(Struct):
    name: str = string("8-9", default="", ignorable=True)
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponseGroupPartition] = array(OffsetFetchResponseGroupPartition)


class OffsetFetchResponseGroup(Struct):
    group_id: str = string()
    topics: list[OffsetFetchResponseGroupTopic] = array(OffsetFetchResponseGroupTopic)
    error_code: int = i16(default=0)


class OffsetFetchResponse(Response, key=9, versions=(1, 10), flexible=6):
    throttle_time_ms: int = i32("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7", default=())
    error_code: int = i16("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+", default=())
