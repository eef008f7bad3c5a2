"""DescribeConfigs (32): settings of topics and brokers with their sources."""

from moldau.wire.fields import array, boolean, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DescribeConfigsResource(Struct):
    resource_type: int = i8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array("string", nullable="0+")


class DescribeConfigsRequest(Request, key=32, versions=(1, 4), flexible=4):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean("3+", default=False)


class DescribeConfigsSynonym(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    source: int = i8()


class DescribeConfigsResourceResult(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = i8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = i8("3+", default=0, ignorable=True)
    documentation: str | None = string("3+", nullable="0+", default="", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Response, key=32, versions=(1, 4), flexible=4):
    throttle_time_ms: int = i32(default=0)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
