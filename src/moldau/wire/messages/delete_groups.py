"""DeleteGroups (42): delete empty groups with their offsets."""

from moldau.wire.fields import array, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DeleteGroupsRequest(Request, key=42, versions=(0, 2), flexible=2):
    groups_names: list[str] = array("string")


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = i16(default=0)


class DeleteGroupsResponse(Response, key=42, versions=(0, 2), flexible=2):
    throttle_time_ms: int = i32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
