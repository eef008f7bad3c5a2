"""CreatePartitions (37): add partitions to topics."""

from moldau.wire.fields import array, boolean, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array("i32")


class CreatePartitionsTopic(Struct):
    name: str = string()
    count: int = i32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+"
    )


class CreatePartitionsRequest(Request, key=37, versions=(0, 3), flexible=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = i32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    name: str = string()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class CreatePartitionsResponse(Response, key=37, versions=(0, 3), flexible=2):
    throttle_time_ms: int = i32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
