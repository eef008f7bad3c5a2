"""ListConfigResources (74): names of resources with settings."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class ListConfigResourcesRequest(Request, key=74, versions=(0, 1), flexible=0):
    resource_types: list[int] = array("i8", "1+", default=())


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = i8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response, key=74, versions=(0, 1), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource)
