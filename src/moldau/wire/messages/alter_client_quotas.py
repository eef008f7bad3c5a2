"""AlterClientQuotas (49): set or remove quotas."""

from moldau.wire.fields import array, boolean, f64, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class AlterQuotasEntity(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class AlterQuotasOperation(Struct):
    key: str = string()
    value: float = f64()
    remove: bool = boolean()


class AlterQuotasEntry(Struct):
    entity: list[AlterQuotasEntity] = array(AlterQuotasEntity)
    ops: list[AlterQuotasOperation] = array(AlterQuotasOperation)


class AlterClientQuotasRequest(Request, key=49, versions=(0, 1), flexible=1):
    entries: list[AlterQuotasEntry] = array(AlterQuotasEntry)
    validate_only: bool = boolean()


class AlterQuotasResponseEntity(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class AlterQuotasResponseEntry(Struct):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    entity: list[AlterQuotasResponseEntity] = array(AlterQuotasResponseEntity)


class AlterClientQuotasResponse(Response, key=49, versions=(0, 1), flexible=1):
    throttle_time_ms: int = i32(default=0)
    entries: list[AlterQuotasResponseEntry] = array(AlterQuotasResponseEntry)
