"""DescribeTopicPartitions (75): topics in pages, with a cursor."""

from moldau.wire.fields import INT32_MIN, array, boolean, i16, i32, string, struct, uuid
from moldau.wire.schema import Request, Response, Struct


class DescribeTopicPartitionsTopic(Struct):
    name: str = string()


class DescribeTopicPartitionsCursor(Struct):
    topic_name: str = string()
    partition_index: int = i32()


class DescribeTopicPartitionsRequest(Request, key=75, versions=(0, 0), flexible=0):
    topics: list[DescribeTopicPartitionsTopic] = array(DescribeTopicPartitionsTopic)
    response_partition_limit: int = i32(default=2000)
    cursor: DescribeTopicPartitionsCursor | None = struct(
        DescribeTopicPartitionsCursor, nullable="0+", default=None
    )


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = i16(default=0)
    partition_index: int = i32()
    leader_id: int = i32()
    leader_epoch: int = i32(default=-1)
    replica_nodes: list[int] = array("i32")
    isr_nodes: list[int] = array("i32")
    eligible_leader_replicas: list[int] | None = array("i32", nullable="0+", default=None)
    last_known_elr: list[int] | None = array("i32", nullable="0+", default=None)
    offline_replicas: list[int] = array("i32")


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = i16(default=0)
    name: str | None = string(nullable="0+")
    topic_id: bytes = uuid()
    is_internal: bool = boolean(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = i32(default=INT32_MIN)


class DescribeTopicPartitionsNextCursor(Struct):
    topic_name: str = string()
    partition_index: int = i32()


class DescribeTopicPartitionsResponse(Response, key=75, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: DescribeTopicPartitionsNextCursor | None = struct(
        DescribeTopicPartitionsNextCursor, nullable="0+", default=None
    )
