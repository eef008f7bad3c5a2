"""CreateTopics (19): create topics, or check that they could be created."""

from moldau.wire.fields import ZERO_UUID, array, boolean, i8, i16, i32, string, uuid
from moldau.wire.schema import Request, Response, Struct


class CreatableReplicaAssignment(Struct):
    partition_index: int = i32()
    broker_ids: list[int] = array("i32")


class CreatableTopicConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")


class CreatableTopic(Struct):
    name: str = string()
    num_partitions: int = i32()
    replication_factor: int = i16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, default=())
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, default=())


class CreateTopicsRequest(Request, key=19, versions=(2, 7), flexible=5):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = i32(default=60000)
    validate_only: bool = boolean(default=False)


class CreatedTopicConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = i8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string()
    topic_id: bytes = uuid("7+", default=ZERO_UUID, ignorable=True)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    topic_config_error_code: int = i16("5+", tag=0, default=0, ignorable=True)
    num_partitions: int = i32("5+", default=-1, ignorable=True)
    replication_factor: int = i16("5+", default=-1, ignorable=True)
    configs: list[CreatedTopicConfig] | None = array(
        CreatedTopicConfig, "5+", nullable="0+", default=(), ignorable=True
    )


class CreateTopicsResponse(Response, key=19, versions=(2, 7), flexible=5):
    throttle_time_ms: int = i32(default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
