"""CreateAcls (30): add access rules."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class AclCreation(Struct):
    resource_type: int = i8()
    resource_name: str = string()
    resource_pattern_type: int = i8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


class CreateAclsRequest(Request, key=30, versions=(1, 3), flexible=2):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class CreateAclsResponse(Response, key=30, versions=(1, 3), flexible=2):
    throttle_time_ms: int = i32(default=0)
    results: list[AclCreationResult] = array(AclCreationResult)
