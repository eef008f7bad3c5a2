"""What a failed call means: whether it is retriable, and which error the user gets.

A broker that rejects a call says why in trailers (`moldau-reason`, `moldau-hint`). A failure
without them did not come from a broker.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc import aio

from moldau.client.errors import (
    RIGHTS_HINT,
    SECURITY_HINT,
    TOPIC_EXISTS_HINT,
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
    login_hint,
)
from moldau.model.errors import ErrorCode
from moldau.proto.trailers import (
    HINT_TRAILER,
    REASON_TRAILER,
    RETRY_TRAILER,
    UNCERTAIN_TRAILER,
    decode_text,
)
from moldau.proto.v1 import queue_pb2 as pb

GRPC_HINT: Final = (
    "is that the gRPC address of a running broker (grpc.addr, 8000 by default)? "
    "start one: moldau dev · other address: MOLDAU_GRPC"
)

_CLOSED_HINT: Final = (
    "is that the gRPC address of a broker (grpc.addr), and does it require TLS? "
    "see option security.protocol"
)
REFUSED: Final = "connection refused"
RETRY_SECONDS_MAX: Final = 30.0
"""No longer is waited for a quota at a time: it may be raised meanwhile."""

REASON_NUMBERS: Final[dict[str, int]] = dict(pb.Reason.items())
REASON_NAMES: Final[dict[int, str]] = {number: name for name, number in pb.Reason.items()}
RETRIABLE_REASONS: Final = frozenset({pb.NOT_LEADER, pb.UNAVAILABLE, pb.BUSY})
_RETRIABLE_NAMES: Final = frozenset(REASON_NAMES[number] for number in RETRIABLE_REASONS)

_NOT_CONNECTED: Final = "failed to connect to all addresses"
"""gRPC's text for a call without a connection. If it ever changes, a send counts as uncertain where
it is not, which is safe."""

_CONNECTION_LOST: Final = "Internal error from Core"
"""gRPC's text for a stream whose connection broke during a write. Its status is INTERNAL, although
no broker responded."""

_TOO_LARGE: Final = ("Sent message larger than max", "SERVER: Received message larger than max")
"""gRPC's texts for a request that it did not send."""

_TLS_FAILURES: Final = {
    "certificate_verify_failed": "its certificate is not trusted",
    "wrong_version_number": "it does not accept TLS",
    "hostname verification": "its certificate is for another host",
    "handshake failed": "the TLS handshake failed",
    "handshaker shutdown": "the TLS handshake failed",
}
"""Parts of gRPC's texts, and what they mean. The first that is found counts."""

_HINTS: Final = {
    "UNKNOWN_TOPIC": "create it: moldau topic create NAME · list them: moldau topic list",
    "UNKNOWN_GROUP": "list them: moldau queue list · a worker that connects creates one",
    "TOPIC_EXISTS": TOPIC_EXISTS_HINT,
    "TOO_LARGE": "send smaller messages, or raise the topic's max.message.bytes",
}

_CODES: Final = {
    "INVALID_ARGUMENT": ErrorCode.INVALID_REQUEST,
    "TOPIC_EXISTS": ErrorCode.TOPIC_ALREADY_EXISTS,
    "OTHER_MODE": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "UNKNOWN_CONSUMER": ErrorCode.UNKNOWN_MEMBER_ID,
    "NOT_LEADER": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "UNAVAILABLE": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "TOO_LARGE": ErrorCode.MESSAGE_TOO_LARGE,
    "BUSY": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "OUT_OF_RANGE": ErrorCode.OFFSET_OUT_OF_RANGE,
}
_NUMBER: Final = re.compile("[0-9]{1,9}")
_MISSING: Final = frozenset({"UNKNOWN_TOPIC", "UNKNOWN_GROUP"})


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """Why a call to `address` failed; `reason` is empty if no broker responded."""

    address: str
    status: grpc.StatusCode
    reason: str
    text: str
    hint: str
    is_uncertain: bool
    """The request may have been carried out."""
    retry_seconds: float = 0.0
    """How long a client over its quota has to wait."""

    @property
    def is_retriable(self) -> bool:
        """Whether another broker, or this one later, may succeed."""
        return self.reason in _RETRIABLE_NAMES or self.has_no_response

    @property
    def has_no_response(self) -> bool:
        """Whether no broker responded."""
        return not self.reason and self.status in _NO_RESPONSE

    @property
    def is_refused_login(self) -> bool:
        return self.reason == grpc.StatusCode.UNAUTHENTICATED.name

    @property
    def is_evicted(self) -> bool:
        return self.reason == "UNKNOWN_CONSUMER"

    @property
    def is_stale_route(self) -> bool:
        """Whether our view of the cluster is stale, or the broker is down."""
        return self.reason == "NOT_LEADER" or self.has_no_response

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


_NO_RESPONSE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def failure_of(error: aio.AioRpcError, address: str) -> RpcFailure:
    """Interpret an error of gRPC."""
    if not address:
        return unreachable_failure("", "no broker is known yet")
    trailers = {key: _text(value) for key, value in (error.trailing_metadata() or ())}
    reason = trailers.get(REASON_TRAILER, "")
    text = (error.details() or error.code().name.lower().replace("_", " ")).strip()
    if not reason and error.code() is grpc.StatusCode.UNAVAILABLE:
        is_connected = not text.startswith(_NOT_CONNECTED)
        if tls := next((why for name, why in _TLS_FAILURES.items() if name in text.lower()), ""):
            return RpcFailure(address, error.code(), "", tls, SECURITY_HINT, False)
        if "missing selected alpn" in text.lower():
            return unreachable_failure(address, "it is not a gRPC listener")
        if not is_connected and "socket closed" in text.lower():
            text = "it closed the connection"
            return RpcFailure(address, error.code(), "", text, _CLOSED_HINT, False)
        text = REFUSED if "refused" in text.lower() else _first_words(text)
        return RpcFailure(address, error.code(), "", text, GRPC_HINT, is_connected)
    if not reason and text == _CONNECTION_LOST:
        broken = grpc.StatusCode.UNAVAILABLE
        return RpcFailure(address, broken, "", "lost the connection", GRPC_HINT, True)
    if not reason and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = "timed out"
    if not reason and any(each in text for each in _TOO_LARGE):
        text = "the request exceeds the gRPC limit"
        return RpcFailure(address, error.code(), "TOO_LARGE", text, "", False)
    uncertain = trailers.get(UNCERTAIN_TRAILER) == "true" or not reason or reason == "TIMED_OUT"
    hint = decode_text(trailers.get(HINT_TRAILER, ""))
    retry_ms = trailers.get(RETRY_TRAILER, "")
    retry_seconds = int(retry_ms) / 1000 if _NUMBER.fullmatch(retry_ms) else 0.0
    return RpcFailure(
        address, error.code(), reason, text, hint, uncertain, min(retry_seconds, RETRY_SECONDS_MAX)
    )


def unreachable_failure(address: str, text: str) -> RpcFailure:
    """A broker that could not be reached, or not by gRPC."""
    return RpcFailure(address, grpc.StatusCode.UNAVAILABLE, "", text, GRPC_HINT, False)


def refused_failure(address: str, text: str) -> RpcFailure:
    """A broker that refused our login."""
    status = grpc.StatusCode.UNAUTHENTICATED
    return RpcFailure(address, status, status.name, text, "", False)


def timed_out_failure(address: str, text: str = "timed out") -> RpcFailure:
    """A response did not arrive in time; the request may have been carried out."""
    return RpcFailure(address, grpc.StatusCode.DEADLINE_EXCEEDED, "", text, "", True)


async def stream_failure(call: "aio.StreamStreamCall[Any, Any]", address: str) -> RpcFailure:
    """Why a broker ended a stream."""
    status = await call.code()
    trailers = await call.trailing_metadata() or aio.Metadata()
    details = await call.details() or "the broker ended the stream"
    if status is grpc.StatusCode.OK:
        status = grpc.StatusCode.UNAVAILABLE
    return failure_of(aio.AioRpcError(status, aio.Metadata(), trailers, details=details), address)


def error_of(failure: RpcFailure, doing: str) -> ClientError:
    """The error for the user."""
    return error_for(
        failure.reason or failure.status.name,
        f"cannot {doing}: {failure.text}",
        hint=failure.hint,
        has_no_response=failure.has_no_response,
    )


def error_for(
    reason: str, message: str, *, hint: str = "", has_no_response: bool = False
) -> ClientError:
    """The error for the name of a reason."""
    if has_no_response:
        if reason == grpc.StatusCode.DEADLINE_EXCEEDED.name:
            return TimedOutError(message, hint=hint or "find the cause: moldau doctor")
        return UnreachableError(message, hint=hint or GRPC_HINT)
    hint = hint or _HINTS.get(reason, "")
    if reason in _MISSING:
        return NotFoundError(message, hint=hint)
    if reason == "TIMED_OUT":
        return TimedOutError(message, hint=hint)
    if reason == "INVALID_ARGUMENT":
        return InvalidArgumentError(message, hint=hint)
    if reason == grpc.StatusCode.UNAUTHENTICATED.name:
        # The hint of the broker is about gRPC's metadata, which this client writes itself.
        return RejectedError(
            message, ErrorCode.SASL_AUTHENTICATION_FAILED, hint=login_hint(message)
        )
    if reason == grpc.StatusCode.PERMISSION_DENIED.name:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return RejectedError(message, code, hint=hint or RIGHTS_HINT)
    code = _CODES.get(reason, ErrorCode.UNKNOWN_SERVER_ERROR)
    if reason in _RETRIABLE_NAMES:
        return UnavailableError(message, code, hint=hint or "retry later")
    return RejectedError(message, code, hint=hint)


def retries_exhausted_error(
    failures: dict[str, RpcFailure], doing: str, seconds: float
) -> ClientError:
    """All retries failed until the deadline; with the last failure of each address."""
    tried = ", ".join(dict.fromkeys(f"{each.address} ({each.text})" for each in failures.values()))
    message = f"cannot {doing}: tried {tried or 'no broker'} for {seconds:g} s"
    no_response = [each for each in failures.values() if each.has_no_response]
    if len(no_response) == len(failures):
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        if no_response and all(each.status is late for each in no_response):
            return TimedOutError(message, hint="find the cause: moldau doctor")
        return UnreachableError(message, hint=no_response[0].hint if no_response else GRPC_HINT)
    # A broker responded with a reason: more useful than a list of unreachable addresses.
    responded = next(each for each in failures.values() if not each.has_no_response)
    return error_for(responded.reason or responded.status.name, message, hint=responded.hint)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _first_words(text: str) -> str:
    """Without the details that gRPC appends in braces."""
    return text.partition(";")[0].partition("{")[0].strip().lower() or "unavailable"
