"""AddOffsetsToTxn (25): add the offsets of a group to a transaction."""

from moldau.wire.fields import i16, i32, i64, string
from moldau.wire.schema import Request, Response


class AddOffsetsToTxnRequest(Request, key=25, versions=(0, 4), flexible=3):
    transactional_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, key=25, versions=(0, 4), flexible=3):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
