"""Produce (0): append record batches to partitions."""

from moldau.wire.fields import (
    ZERO_UUID,
    Records,
    array,
    i16,
    i32,
    i64,
    records,
    string,
    struct,
    uuid,
)
from moldau.wire.schema import Request, Response, Struct


class ProducePartition(Struct):
    index: int = i32()
    records: Records = records()


class ProduceTopic(Struct):
    name: str = string("0-12", default="", ignorable=True)
    topic_id: bytes = uuid("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[ProducePartition] = array(ProducePartition)


class ProduceRequest(Request, key=0, versions=(3, 13), flexible=9):
    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = i16()
    timeout_ms: int = i32()
    topics: list[ProduceTopic] = array(ProduceTopic)


class ProduceRecordError(Struct):
    batch_index: int = i32()
    batch_index_error_message: str | None = string(nullable="0+", default=None)


class ProduceLeader(Struct):
    leader_id: int = i32(default=-1)
    leader_epoch: int = i32(default=-1)


class ProduceResponsePartition(Struct):
    index: int = i32()
    error_code: int = i16(default=0)
    base_offset: int = i64()
    log_append_time_ms: int = i64(default=-1)
    log_start_offset: int = i64("5+", default=-1, ignorable=True)
    record_errors: list[ProduceRecordError] = array(
        ProduceRecordError, "8+", default=(), ignorable=True
    )
    error_message: str | None = string("8+", nullable="0+", default=None, ignorable=True)
    current_leader: ProduceLeader | None = struct(ProduceLeader, "10+", tag=0, default=None)


class ProduceResponseTopic(Struct):
    name: str = string("0-12", default="", ignorable=True)
    topic_id: bytes = uuid("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[ProduceResponsePartition] = array(ProduceResponsePartition)


class ProduceNode(Struct):
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(nullable="0+", default=None)


class ProduceResponse(Response, key=0, versions=(3, 13), flexible=9):
    topics: list[ProduceResponseTopic] = array(ProduceResponseTopic)
    throttle_time_ms: int = i32(default=0)
    node_endpoints: list[ProduceNode] = array(ProduceNode, "10+", tag=0, default=())
