"""InitProducerId (22): get a producer id and epoch for idempotence or transactions."""

from moldau.wire.fields import i16, i32, i64, string
from moldau.wire.schema import Request, Response


class InitProducerIdRequest(Request, key=22, versions=(0, 5), flexible=2):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = i32()
    producer_id: int = i64("3+", default=-1)
    producer_epoch: int = i16("3+", default=-1)


class InitProducerIdResponse(Response, key=22, versions=(0, 5), flexible=2):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    producer_id: int = i64(default=-1)
    producer_epoch: int = i16()
