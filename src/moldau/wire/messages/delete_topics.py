"""DeleteTopics (20): delete topics by name, or by id since version 6."""

from moldau.wire.fields import ZERO_UUID, array, i16, i32, string, uuid
from moldau.wire.schema import Request, Response, Struct


class DeleteTopicState(Struct):
    name: str | None = string(nullable="0+", default=None)
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Request, key=20, versions=(1, 6), flexible=4):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+", default=())
    topic_names: list[str] = array("string", "0-5", default=(), ignorable=True)
    timeout_ms: int = i32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+")
    topic_id: bytes = uuid("6+", default=ZERO_UUID, ignorable=True)
    error_code: int = i16(default=0)
    error_message: str | None = string("5+", nullable="0+", default=None, ignorable=True)


class DeleteTopicsResponse(Response, key=20, versions=(1, 6), flexible=4):
    throttle_time_ms: int = i32(default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
