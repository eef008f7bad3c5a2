"""DescribeAcls (29): list access rules by filter."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DescribeAclsRequest(Request, key=29, versions=(1, 3), flexible=2):
    resource_type_filter: int = i8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = i8(default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = i8()
    permission_type: int = i8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


class DescribeAclsResource(Struct):
    resource_type: int = i8()
    resource_name: str = string()
    pattern_type: int = i8(default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Response, key=29, versions=(1, 3), flexible=2):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
