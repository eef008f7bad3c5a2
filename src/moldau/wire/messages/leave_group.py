"""LeaveGroup (13): remove one member, or several since version 3, from a group."""

from moldau.wire.fields import array, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class LeaveGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+", default=None)
    reason: str | None = string("5+", nullable="0+", default=None, ignorable=True)


class LeaveGroupRequest(Request, key=13, versions=(0, 5), flexible=4):
    group_id: str = string()
    member_id: str = string("0-2", default="")
    members: list[LeaveGroupMember] = array(LeaveGroupMember, "3+", default=())


class LeaveGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+")
    error_code: int = i16(default=0)


class LeaveGroupResponse(Response, key=13, versions=(0, 5), flexible=4):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    error_code: int = i16(default=0)
    members: list[LeaveGroupResponseMember] = array(LeaveGroupResponseMember, "3+", default=())
