"""ConsumerGroupHeartbeat (68): join, stay in and leave a group with server-side assignment."""

from moldau.wire.fields import array, i16, i32, string, struct, uuid
from moldau.wire.schema import Request, Response, Struct


class HeartbeatOwnedTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("i32")


class ConsumerGroupHeartbeatRequest(Request, key=68, versions=(0, 1), flexible=0):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = i32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = i32(default=-1)
    subscribed_topic_names: list[str] | None = array("string", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[HeartbeatOwnedTopic] | None = array(
        HeartbeatOwnedTopic, nullable="0+", default=None
    )


class HeartbeatAssignedTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("i32")


class HeartbeatAssignment(Struct):
    topic_partitions: list[HeartbeatAssignedTopic] = array(HeartbeatAssignedTopic)


class ConsumerGroupHeartbeatResponse(Response, key=68, versions=(0, 1), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = i32()
    heartbeat_interval_ms: int = i32()
    assignment: HeartbeatAssignment | None = struct(
        HeartbeatAssignment, nullable="0+", default=None
    )
