"""ListPartitionReassignments (46): reassignments in progress."""

from moldau.wire.fields import array, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class ListPartitionReassignmentsTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("i32")


class ListPartitionReassignmentsRequest(Request, key=46, versions=(0, 0), flexible=0):
    timeout_ms: int = i32(default=60000)
    topics: list[ListPartitionReassignmentsTopic] | None = array(
        ListPartitionReassignmentsTopic, nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = i32()
    replicas: list[int] = array("i32")
    adding_replicas: list[int] = array("i32")
    removing_replicas: list[int] = array("i32")


class OngoingTopicReassignment(Struct):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Response, key=46, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
