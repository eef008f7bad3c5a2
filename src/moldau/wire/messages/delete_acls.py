"""DeleteAcls (31): delete access rules by filters."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DeleteAclsFilter(Struct):
    resource_type_filter: int = i8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = i8(default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = i8()
    permission_type: int = i8()


class DeleteAclsRequest(Request, key=31, versions=(1, 3), flexible=2):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resource_type: int = i8()
    resource_name: str = string()
    pattern_type: int = i8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


class DeleteAclsFilterResult(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Response, key=31, versions=(1, 3), flexible=2):
    throttle_time_ms: int = i32(default=0)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
