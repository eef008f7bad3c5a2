"""AlterPartitionReassignments (45): move partitions to other replicas."""

from moldau.wire.fields import array, boolean, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class ReassignablePartition(Struct):
    partition_index: int = i32()
    replicas: list[int] | None = array("i32", nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Request, key=45, versions=(0, 1), flexible=0):
    timeout_ms: int = i32(default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = i32()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Response, key=45, versions=(0, 1), flexible=0):
    throttle_time_ms: int = i32(default=0)
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
