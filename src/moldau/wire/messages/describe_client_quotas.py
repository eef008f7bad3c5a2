"""DescribeClientQuotas (48): list quotas by filter."""

from moldau.wire.fields import array, boolean, f64, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class DescribeQuotasComponent(Struct):
    entity_type: str = string()
    match_type: int = i8()
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(Request, key=48, versions=(0, 1), flexible=1):
    components: list[DescribeQuotasComponent] = array(DescribeQuotasComponent)
    strict: bool = boolean()


class DescribeQuotasEntity(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class DescribeQuotasValue(Struct):
    key: str = string()
    value: float = f64()


class DescribeQuotasEntry(Struct):
    entity: list[DescribeQuotasEntity] = array(DescribeQuotasEntity)
    values: list[DescribeQuotasValue] = array(DescribeQuotasValue)


class DescribeClientQuotasResponse(Response, key=48, versions=(0, 1), flexible=1):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    entries: list[DescribeQuotasEntry] | None = array(DescribeQuotasEntry, nullable="0+")
