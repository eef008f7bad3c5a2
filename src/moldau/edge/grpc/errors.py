"""Errors as gRPC statuses: a status code, a reason for programs, a message for people."""

import logging
from math import ceil
from typing import Final, NamedTuple

from grpc import StatusCode

from moldau.api.password_check import UnavailableError
from moldau.api.queues import ErrorReason, QueueRefusedError
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, MoldauError, QuotaExceededError, RefusedError
from moldau.proto.trailers import (
    HINT_TRAILER,
    REASON_TRAILER,
    RETRY_TRAILER,
    UNCERTAIN_TRAILER,
    encode_text,
)
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import Reason
from moldau.security.sasl import AuthenticationError

log = logging.getLogger(__name__)

_TEXT_BYTES_MAX: Final = 1000
"""Of a message or a hint: clients accept 8 KiB of trailers, and encoding may triple a byte."""

PROTO_REASON: Final = {reason: queue_pb2.Reason.Value(reason.name) for reason in ErrorReason}

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
    queue_pb2.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    queue_pb2.PERMISSION_DENIED: StatusCode.PERMISSION_DENIED,
}
"""All others concern single tokens: FAILED_PRECONDITION."""

_REASON_OF_CODE: Final = {
    **{code: queue_pb2.UNAVAILABLE for code in ErrorCode if code.is_unavailable},
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
    ErrorCode.SASL_AUTHENTICATION_FAILED: queue_pb2.UNAUTHENTICATED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: queue_pb2.PERMISSION_DENIED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: queue_pb2.PERMISSION_DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: queue_pb2.PERMISSION_DENIED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: queue_pb2.PERMISSION_DENIED,
}
"""All others are caused by the request: INVALID_ARGUMENT."""


class ErrorStatus(NamedTuple):
    """The error that the client receives."""

    reason: Reason.ValueType
    text: str
    hint: str = ""
    is_uncertain: bool = False
    retry_seconds: float = 0.0
    """How long a client over its quota has to wait."""

    @property
    def code(self) -> StatusCode:
        return _STATUS.get(self.reason, StatusCode.FAILED_PRECONDITION)

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        trailers = [(REASON_TRAILER, queue_pb2.Reason.Name(self.reason))]
        if self.hint:
            trailers.append((HINT_TRAILER, encode_text(short(self.hint))))
        if self.is_uncertain:
            trailers.append((UNCERTAIN_TRAILER, "true"))
        if self.retry_seconds:
            trailers.append((RETRY_TRAILER, str(ceil(self.retry_seconds * 1000))))
        return tuple(trailers)


_LOGIN_HINT: Final = "send authorization metadata: Basic, or Bearer with a token"
STOPPING: Final = ErrorStatus(
    queue_pb2.UNAVAILABLE, "the broker is stopping", "retry on another broker"
)
SILENT: Final = ErrorStatus(
    queue_pb2.TIMED_OUT, "the request did not arrive in time", "send it when the call begins"
)
REPLACED: Final = ErrorStatus(
    queue_pb2.BUSY, "too many health checks at once, and this was the oldest", "check again"
)


def too_many_calls(reason: str) -> ErrorStatus:
    return ErrorStatus(queue_pb2.BUSY, reason, "end other calls first, or retry later")


_INTERNAL_ERROR: Final = ErrorStatus(
    queue_pb2.INTERNAL, "internal error of the broker", "see the log of the broker"
)


def status_of(error: MoldauError) -> ErrorStatus:
    if isinstance(error, QueueRefusedError):
        return ErrorStatus(PROTO_REASON[error.reason], str(error), error.hint)
    if isinstance(error, QuotaExceededError):
        return ErrorStatus(
            queue_pb2.BUSY, str(error), error.hint, retry_seconds=error.retry_seconds
        )
    if isinstance(error, RefusedError):
        return ErrorStatus(reason_of(error.code), str(error), error.hint)
    return internal_error(error)


def unknown_caller(error: AuthenticationError) -> ErrorStatus:
    if isinstance(error, UnavailableError):
        # The client may be right.
        return ErrorStatus(queue_pb2.UNAVAILABLE, error.text, "retry later")
    return ErrorStatus(queue_pb2.UNAUTHENTICATED, error.text, _LOGIN_HINT)


def internal_error(error: Exception) -> ErrorStatus:
    """The traceback is logged, not sent."""
    log.error(
        "internal error while handling a gRPC call", exc_info=error, extra=events.INTERNAL_ERROR()
    )
    return _INTERNAL_ERROR


def reason_of(code: ErrorCode) -> Reason.ValueType:
    return _REASON_OF_CODE.get(code, queue_pb2.INVALID_ARGUMENT)


def short(text: str) -> str:
    """Truncated to fit into trailers, and valid UTF-8: names in it may be arbitrary."""
    data = text.encode("utf-8", "replace")
    if len(data) <= _TEXT_BYTES_MAX:
        return data.decode()
    return data[:_TEXT_BYTES_MAX].decode("utf-8", "ignore") + "…"
