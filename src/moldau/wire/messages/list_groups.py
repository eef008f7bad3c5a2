"""ListGroups (16): the groups that a broker coordinates."""

from moldau.wire.fields import array, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class ListGroupsRequest(Request, key=16, versions=(0, 5), flexible=3):
    states_filter: list[str] = array("string", "4+", default=())
    types_filter: list[str] = array("string", "5+", default=())


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", default="", ignorable=True)
    group_type: str = string("5+", default="", ignorable=True)


class ListGroupsResponse(Response, key=16, versions=(0, 5), flexible=3):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    error_code: int = i16(default=0)
    groups: list[ListedGroup] = array(ListedGroup)
