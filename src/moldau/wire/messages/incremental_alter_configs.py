"""IncrementalAlterConfigs (44): set, delete, append or subtract single settings."""

from moldau.wire.fields import array, boolean, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class IncrementalConfig(Struct):
    name: str = string()
    config_operation: int = i8()
    value: str | None = string(nullable="0+")


class IncrementalConfigsResource(Struct):
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[IncrementalConfig] = array(IncrementalConfig)


class IncrementalAlterConfigsRequest(Request, key=44, versions=(0, 1), flexible=1):
    resources: list[IncrementalConfigsResource] = array(IncrementalConfigsResource)
    validate_only: bool = boolean()


class IncrementalConfigsResourceResponse(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resource_type: int = i8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Response, key=44, versions=(0, 1), flexible=1):
    throttle_time_ms: int = i32(default=0)
    responses: list[IncrementalConfigsResourceResponse] = array(IncrementalConfigsResourceResponse)
