"""ApiVersions (18): the API versions of the broker. The first request of nearly every client."""

from moldau.wire.fields import array, boolean, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class ApiVersionsRequest(Request, key=18, versions=(0, 4), flexible=3):
    client_software_name: str = string("3+", default="", ignorable=True)
    client_software_version: str = string("3+", default="", ignorable=True)


class ApiVersion(Struct):
    api_key: int = i16()
    min_version: int = i16()
    max_version: int = i16()


class SupportedFeature(Struct):
    name: str = string()
    min_version: int = i16()
    max_version: int = i16()


class FinalizedFeature(Struct):
    name: str = string()
    max_version_level: int = i16()
    min_version_level: int = i16()


class ApiVersionsResponse(Response, key=18, versions=(0, 4), flexible=3):
    error_code: int = i16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    supported_features: list[SupportedFeature] = array(
        SupportedFeature, "3+", tag=0, default=(), ignorable=True
    )
    finalized_features_epoch: int = i64("3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeature] = array(
        FinalizedFeature, "3+", tag=2, default=(), ignorable=True
    )
    zk_migration_ready: bool = boolean("3+", tag=3, default=False, ignorable=True)
