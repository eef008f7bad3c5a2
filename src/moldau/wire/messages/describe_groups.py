"""DescribeGroups (15): state and members of classic groups."""

from moldau.wire.fields import INT32_MIN, array, boolean, i16, i32, octets, string
from moldau.wire.schema import Request, Response, Struct


class DescribeGroupsRequest(Request, key=15, versions=(0, 6), flexible=5):
    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean("3+", default=False)


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="0+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = octets()
    member_assignment: bytes = octets()


class DescribedGroup(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string("6+", nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = i32("3+", default=INT32_MIN)


class DescribeGroupsResponse(Response, key=15, versions=(0, 6), flexible=5):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)
