"""FindCoordinator (10): the coordinator of a group or a transactional id."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class FindCoordinatorRequest(Request, key=10, versions=(0, 6), flexible=3):
    key: str = string("0-3", default="")
    key_type: int = i8("1+", default=0)
    coordinator_keys: list[str] = array("string", "4+", default=())


class FoundCoordinator(Struct):
    key: str = string()
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class FindCoordinatorResponse(Response, key=10, versions=(0, 6), flexible=3):
    throttle_time_ms: int = i32("1+", default=0, ignorable=True)
    error_code: int = i16("0-3", default=0)
    error_message: str | None = string("1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = i32("0-3", default=0)
    host: str = string("0-3", default="")
    port: int = i32("0-3", default=0)
    coordinators: list[FoundCoordinator] = array(FoundCoordinator, "4+", default=())
