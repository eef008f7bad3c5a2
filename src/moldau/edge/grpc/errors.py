"""Owns how a refusal is told over gRPC: a status, a reason for programs, a text for people."""

import logging
from typing import Final, NamedTuple

from grpc import StatusCode

from moldau.api.retriable import PASSING
from moldau.model.errors import ErrorCode, MoldauError, RefusedError
from moldau.proto.trailers import HINT_TRAILER, REASON_TRAILER, UNCERTAIN_TRAILER, encode_text
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import Reason
from moldau.queues.types import ErrorReason, QueueRefusedError

log = logging.getLogger(__name__)

_TEXT_BYTES_MAX: Final = 1000
"""Of a message or a hint: clients take 8 KiB of trailers, in which a byte may become three."""

REASON_OF_WHY: Final = {why: queue_pb2.Reason.Value(why.name) for why in ErrorReason}

_STATUS: Final = {
    queue_pb2.INVALID_ARGUMENT: StatusCode.INVALID_ARGUMENT,
    queue_pb2.UNKNOWN_TOPIC: StatusCode.NOT_FOUND,
    queue_pb2.TOPIC_EXISTS: StatusCode.ALREADY_EXISTS,
    queue_pb2.UNKNOWN_GROUP: StatusCode.NOT_FOUND,
    queue_pb2.OTHER_MODE: StatusCode.FAILED_PRECONDITION,
    queue_pb2.UNKNOWN_CONSUMER: StatusCode.NOT_FOUND,
    queue_pb2.NOT_LEADER: StatusCode.FAILED_PRECONDITION,
    queue_pb2.UNAVAILABLE: StatusCode.UNAVAILABLE,
    queue_pb2.TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    queue_pb2.TIMED_OUT: StatusCode.DEADLINE_EXCEEDED,
    queue_pb2.BAD_TOKEN: StatusCode.INVALID_ARGUMENT,
    queue_pb2.BUSY: StatusCode.RESOURCE_EXHAUSTED,
    queue_pb2.OUT_OF_RANGE: StatusCode.OUT_OF_RANGE,
    queue_pb2.INTERNAL: StatusCode.INTERNAL,
}
"""Of the others, which are about single tokens: FAILED_PRECONDITION."""

_REASON_OF_CODE: Final = {
    **dict.fromkeys(PASSING, queue_pb2.UNAVAILABLE),
    ErrorCode.OFFSET_OUT_OF_RANGE: queue_pb2.OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: queue_pb2.UNKNOWN_TOPIC,
    ErrorCode.UNKNOWN_TOPIC_ID: queue_pb2.UNKNOWN_TOPIC,
    ErrorCode.TOPIC_ALREADY_EXISTS: queue_pb2.TOPIC_EXISTS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: queue_pb2.NOT_LEADER,
    ErrorCode.MESSAGE_TOO_LARGE: queue_pb2.TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: queue_pb2.TOO_LARGE,
    ErrorCode.REQUEST_TIMED_OUT: queue_pb2.TIMED_OUT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: queue_pb2.BUSY,
    ErrorCode.UNKNOWN_MEMBER_ID: queue_pb2.UNKNOWN_CONSUMER,
    ErrorCode.GROUP_ID_NOT_FOUND: queue_pb2.UNKNOWN_GROUP,
    ErrorCode.UNKNOWN_SERVER_ERROR: queue_pb2.INTERNAL,
}
"""All others are about what was asked for: INVALID_ARGUMENT."""


class ErrorStatus(NamedTuple):
    """What the client is told."""

    reason: Reason.ValueType
    text: str
    hint: str = ""
    is_uncertain: bool = False

    @property
    def status(self) -> StatusCode:
        return _STATUS.get(self.reason, StatusCode.FAILED_PRECONDITION)

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        trailers = [(REASON_TRAILER, queue_pb2.Reason.Name(self.reason))]
        if self.hint:
            trailers.append((HINT_TRAILER, encode_text(short(self.hint))))
        if self.is_uncertain:
            trailers.append((UNCERTAIN_TRAILER, "true"))
        return tuple(trailers)


STOPPING: Final = ErrorStatus(queue_pb2.UNAVAILABLE, "the broker is stopping", "ask another one")
_DEFECT: Final = ErrorStatus(
    queue_pb2.INTERNAL, "the broker met a defect of its own", "its log says which"
)


def status_of(error: MoldauError) -> ErrorStatus:
    if isinstance(error, QueueRefusedError):
        return ErrorStatus(REASON_OF_WHY[error.why], str(error), error.hint)
    if isinstance(error, RefusedError):
        return ErrorStatus(reason_of(error.code), str(error), error.hint)
    return internal_error(error)


def internal_error(error: Exception) -> ErrorStatus:
    """The trace goes to the log, and not to the client."""
    log.error("a gRPC call met a defect", exc_info=error)
    return _DEFECT


def reason_of(code: ErrorCode) -> Reason.ValueType:
    return _REASON_OF_CODE.get(code, queue_pb2.INVALID_ARGUMENT)


def short(text: str) -> str:
    """What fits a reply; names in it may be of any length, and no text in UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= _TEXT_BYTES_MAX:
        return data.decode()
    return data[:_TEXT_BYTES_MAX].decode("utf-8", "ignore") + "…"


def invalid(text: str) -> QueueRefusedError:
    return QueueRefusedError(ErrorReason.INVALID_ARGUMENT, text)
