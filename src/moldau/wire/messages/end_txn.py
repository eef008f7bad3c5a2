"""EndTxn (26): commit or abort a transaction."""

from moldau.wire.fields import boolean, i16, i32, i64, string
from moldau.wire.schema import Request, Response


class EndTxnRequest(Request, key=26, versions=(0, 5), flexible=3):
    transactional_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    committed: bool = boolean()


class EndTxnResponse(Response, key=26, versions=(0, 5), flexible=3):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    producer_id: int = i64("5+", default=-1, ignorable=True)
    producer_epoch: int = i16("5+", default=-1, ignorable=True)
