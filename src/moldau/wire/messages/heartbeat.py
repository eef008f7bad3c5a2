"""Heartbeat (12): a group member reports that it is alive."""

from moldau.wire.fields import i16, i32, string
from moldau.wire.schema import Request, Response


class HeartbeatRequest(Request, key=12, versions=(0, 4), flexible=4):
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)


class HeartbeatResponse(Response, key=12, versions=(0, 4), flexible=4):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    error_code: int = i16(default=0)
