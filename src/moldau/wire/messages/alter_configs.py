"""AlterConfigs (33): replace the whole configuration of resources."""

from moldau.wire.fields import array, boolean, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class AlterableConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Request, key=33, versions=(0, 2), flexible=2):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resource_type: int = i8()
    resource_name: str = string()


class AlterConfigsResponse(Response, key=33, versions=(0, 2), flexible=2):
    throttle_time_ms: int = i32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
