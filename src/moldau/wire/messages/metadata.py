"""Metadata (3): brokers, topics, partitions and their leaders."""

from moldau.wire.fields import INT32_MIN, ZERO_UUID, array, boolean, i16, i32, string, uuid
from moldau.wire.schema import Request, Response, Struct


class MetadataRequestTopic(Struct):
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    name: str | None = string(nullable="10+")


class MetadataRequest(Request, key=3, versions=(0, 13), flexible=9):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10", default=False)
    include_topic_authorized_operations: bool = boolean("8+", default=False)


class MetadataBroker(Struct):
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string("1+", nullable="0+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = i16(default=0)
    partition_index: int = i32()
    leader_id: int = i32()
    leader_epoch: int = i32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array("i32")
    isr_nodes: list[int] = array("i32")
    offline_replicas: list[int] = array("i32", "5+", default=(), ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = i16(default=0)
    name: str | None = string(nullable="12+")
    topic_id: bytes = uuid("10+", default=ZERO_UUID, ignorable=True)
    is_internal: bool = boolean("1+", default=False, ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = i32("8+", default=INT32_MIN)


class MetadataResponse(Response, key=3, versions=(0, 13), flexible=9):
    throttle_time_ms: int = i32("3+", default=0, ignorable=True)
    brokers: list[MetadataBroker] = array(MetadataBroker)
    cluster_id: str | None = string("2+", nullable="0+", default=None, ignorable=True)
    controller_id: int = i32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = i32("8-10", default=INT32_MIN)
    error_code: int = i16("13+", default=0, ignorable=True)
