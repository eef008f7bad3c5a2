"""ConsumerGroupDescribe (69): state and members of groups with server-side assignment."""

from moldau.wire.fields import INT32_MIN, array, boolean, i8, i16, i32, string, struct, uuid
from moldau.wire.schema import Request, Response, Struct


class ConsumerGroupDescribeRequest(Request, key=69, versions=(0, 1), flexible=0):
    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean(default=False)


class ConsumerGroupTopic(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array("i32")


class ConsumerGroupAssignment(Struct):
    topic_partitions: list[ConsumerGroupTopic] = array(ConsumerGroupTopic)


class ConsumerGroupMember(Struct):
    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = i32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: ConsumerGroupAssignment = struct(ConsumerGroupAssignment)
    target_assignment: ConsumerGroupAssignment = struct(ConsumerGroupAssignment)
    member_type: int = i8("1+", default=-1, ignorable=True)


class DescribedConsumerGroup(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = i32()
    assignment_epoch: int = i32()
    assignor_name: str = string()
    members: list[ConsumerGroupMember] = array(ConsumerGroupMember)
    authorized_operations: int = i32(default=INT32_MIN)


class ConsumerGroupDescribeResponse(Response, key=69, versions=(0, 1), flexible=0):
    throttle_time_ms: int = i32(default=0)
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
