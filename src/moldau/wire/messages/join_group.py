"""JoinGroup (11): join a group and wait for the others; the leader gets the list of members."""

from moldau.wire.fields import array, boolean, i16, i32, octets, string
from moldau.wire.schema import Request, Response, Struct


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: bytes = octets()


class JoinGroupRequest(Request, key=11, versions=(0, 9), flexible=6):
    group_id: str = string()
    session_timeout_ms: int = i32()
    rebalance_timeout_ms: int = i32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="0+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="0+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    metadata: bytes = octets()


class JoinGroupResponse(Response, key=11, versions=(0, 9), flexible=6):
    throttle_time_ms: int = i32("2+", default=0, ignorable=True)
    error_code: int = i16(default=0)
    generation_id: int = i32(default=-1)
    protocol_type: str | None = string("7+", nullable="0+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+", default=False)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
