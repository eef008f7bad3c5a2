"""SyncGroup (14): distribute the assignment that the leader of a group made."""

from moldau.wire.fields import array, i16, i32, octets, string
from moldau.wire.schema import Request, Response, Struct


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = octets()


class SyncGroupRequest(Request, key=14, versions=(0, 5), flexible=4):
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)
    protocol_type: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Response, key=14, versions=(0, 5), flexible=4):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    error_code: int = i16(default=0)
    protocol_type: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    assignment: bytes = octets()
