"""Fetch (1): read record batches from partitions, with or without a fetch session."""

from moldau.wire.fields import (
    INT32_MAX,
    INT64_MAX,
    ZERO_UUID,
    Records,
    array,
    i8,
    i16,
    i32,
    i64,
    records,
    string,
    struct,
    uuid,
)
from moldau.wire.schema import Request, Response, Struct


class FetchReplicaState(Struct):
    replica_id: int = i32(default=-1)
    replica_epoch: int = i64(default=-1)


class FetchPartition(Struct):
    partition: int = i32()
    current_leader_epoch: int = i32("9+", default=-1, ignorable=True)
    fetch_offset: int = i64()
    last_fetched_epoch: int = i32("12+", default=-1)
    log_start_offset: int = i64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = i32()
    replica_directory_id: bytes = uuid("17+", tag=0, default=ZERO_UUID, ignorable=True)
    high_watermark: int = i64("18+", tag=1, default=INT64_MAX, ignorable=True)


class FetchTopic(Struct):
    topic: str = string("0-12", default="", ignorable=True)
    topic_id: bytes = uuid("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


class FetchForgottenTopic(Struct):
    topic: str = string("7-12", default="", ignorable=True)
    topic_id: bytes = uuid("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[int] = array("i32")


class FetchRequest(Request, key=1, versions=(4, 18), flexible=12):
    cluster_id: str | None = string("12+", nullable="0+", tag=0, default=None, ignorable=True)
    replica_id: int = i32("0-14", default=-1)
    replica_state: FetchReplicaState | None = struct(FetchReplicaState, "15+", tag=1, default=None)
    max_wait_ms: int = i32()
    min_bytes: int = i32()
    max_bytes: int = i32(default=INT32_MAX)
    isolation_level: int = i8(default=0)
    session_id: int = i32("7+", default=0, ignorable=True)
    session_epoch: int = i32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics: list[FetchForgottenTopic] = array(FetchForgottenTopic, "7+", default=())
    rack_id: str = string("11+", default="", ignorable=True)


class FetchDivergingEpoch(Struct):
    epoch: int = i32(default=-1)
    end_offset: int = i64(default=-1)


class FetchLeader(Struct):
    leader_id: int = i32(default=-1)
    leader_epoch: int = i32(default=-1)


class FetchSnapshotId(Struct):
    end_offset: int = i64(default=-1)
    epoch: int = i32(default=-1)


class FetchAbortedTransaction(Struct):
    producer_id: int = i64()
    first_offset: int = i64()


class FetchResponsePartition(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)
    high_watermark: int = i64()
    last_stable_offset: int = i64(default=-1)
    log_start_offset: int = i64("5+", default=-1, ignorable=True)
    diverging_epoch: FetchDivergingEpoch | None = struct(
        FetchDivergingEpoch, "12+", tag=0, default=None
    )
    current_leader: FetchLeader | None = struct(FetchLeader, "12+", tag=1, default=None)
    snapshot_id: FetchSnapshotId | None = struct(FetchSnapshotId, "12+", tag=2, default=None)
    aborted_transactions: list[FetchAbortedTransaction] | None = array(
        FetchAbortedTransaction, nullable="0+", default=None
    )
    preferred_read_replica: int = i32("11+", default=-1)
    records: Records = records()


class FetchResponseTopic(Struct):
    topic: str = string("0-12", default="", ignorable=True)
    topic_id: bytes = uuid("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchResponsePartition] = array(FetchResponsePartition)


class FetchNode(Struct):
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(nullable="0+", default=None)


class FetchResponse(Response, key=1, versions=(4, 18), flexible=12):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16("7+", default=0, ignorable=True)
    session_id: int = i32("7+", default=0)
    topics: list[FetchResponseTopic] = array(FetchResponseTopic)
    node_endpoints: list[FetchNode] = array(FetchNode, "16+", tag=0, default=())
