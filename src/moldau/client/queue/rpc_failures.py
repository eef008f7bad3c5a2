"""Owns what a failed call means: whether it may be tried again, and which error it is to the user.

A refusal of a broker says in trailers why (`moldau-reason`) and what to do (`moldau-hint`). A call
without them never got an answer from a broker.
"""

from dataclasses import dataclass
from typing import Final

import grpc
from grpc import aio

from moldau.client.errors import (
    ClientError,
    InvalidArgumentError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from moldau.model.errors import ErrorCode
from moldau.proto.trailers import HINT_TRAILER, REASON_TRAILER, UNCERTAIN_TRAILER, decode_text

GRPC_HINT: Final = (
    "is that the gRPC address of a running broker (grpc.addr, 8000 unless set)? "
    "start one: moldau dev · other address: MOLDAU_GRPC"
)

_AGAIN: Final = frozenset({"NOT_LEADER", "UNAVAILABLE", "BUSY"})
_NEVER_LEFT: Final = "failed to connect to all addresses"
"""What gRPC's core says of a call for which there was no connection. Should it ever say something
else, a send counts as uncertain where it is not, which is safe."""

_BROKE: Final = "Internal error from Core"
"""What gRPC's core says of a stream whose connection broke in the middle of a write. The status
says INTERNAL, as if a broker had failed; none has answered."""

_TOO_LARGE: Final = ("Sent message larger than max", "SERVER: Received message larger than max")
"""What gRPC's core says of a request that it did not let through."""

_HINTS: Final = {
    "UNKNOWN_TOPIC": "create it: moldau topic create NAME · list them: moldau topic list",
    "UNKNOWN_GROUP": "which there are: moldau queue list · a worker that connects makes one",
    "TOPIC_EXISTS": "to be content with it: exist_ok=True",
    "TOO_LARGE": "send smaller ones, or raise the topic's max.message.bytes",
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
_MISSING: Final = frozenset({"UNKNOWN_TOPIC", "UNKNOWN_GROUP"})


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """Why a call at `address` failed; `reason` is empty if no broker answered."""

    address: str
    status: grpc.StatusCode
    reason: str
    text: str
    hint: str
    is_uncertain: bool
    """It may have been carried out all the same."""

    @property
    def may_repeat(self) -> bool:
        """Another broker, or this one a little later, may say something else."""
        return self.reason in _AGAIN or (not self.reason and self.status in _SILENT)

    @property
    def is_silent(self) -> bool:
        """Nobody answered."""
        return not self.reason and self.status in _SILENT

    @property
    def is_evicted(self) -> bool:
        return self.reason == "UNKNOWN_CONSUMER"

    @property
    def is_misrouted(self) -> bool:
        """What we believe of the cluster is not so, or its broker is gone."""
        return self.reason == "NOT_LEADER" or self.is_silent

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


_SILENT: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def failure_of(error: aio.AioRpcError, address: str) -> RpcFailure:
    """What an error of gRPC says."""
    if not address:
        return unreachable_failure("", "no broker is known yet")
    trailers = {key: _text(value) for key, value in (error.trailing_metadata() or ())}
    reason = trailers.get(REASON_TRAILER, "")
    text = (error.details() or error.code().name.lower().replace("_", " ")).strip()
    if not reason and error.code() is grpc.StatusCode.UNAVAILABLE:
        never_left = text.startswith(_NEVER_LEFT)
        text = "connection refused" if "refused" in text.lower() else _first_words(text)
        return RpcFailure(address, error.code(), "", text, GRPC_HINT, not never_left)
    if not reason and text == _BROKE:
        broken = grpc.StatusCode.UNAVAILABLE
        return RpcFailure(address, broken, "", "the connection broke", GRPC_HINT, True)
    if not reason and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = "no answer in time"
    if not reason and any(each in text for each in _TOO_LARGE):
        text = "the request is larger than gRPC may carry"
        return RpcFailure(address, error.code(), "TOO_LARGE", text, "", False)
    uncertain = trailers.get(UNCERTAIN_TRAILER) == "true" or not reason or reason == "TIMED_OUT"
    hint = decode_text(trailers.get(HINT_TRAILER, ""))
    return RpcFailure(address, error.code(), reason, text, hint, uncertain)


def unreachable_failure(address: str, text: str) -> RpcFailure:
    """Somebody who was asked in another way than by gRPC, and did not answer."""
    return RpcFailure(address, grpc.StatusCode.UNAVAILABLE, "", text, GRPC_HINT, False)


def error_of(failure: RpcFailure, doing: str) -> ClientError:
    """The error of the client that a failure is."""
    return error_for(
        failure.reason or failure.status.name,
        f"cannot {doing}: {failure.text}",
        hint=failure.hint,
        is_silent=failure.is_silent,
    )


def error_for(reason: str, message: str, *, hint: str = "", is_silent: bool = False) -> ClientError:
    """The error for the name of a reason."""
    if is_silent:
        if reason == grpc.StatusCode.DEADLINE_EXCEEDED.name:
            return TimedOutError(message, hint=hint or "look for trouble: moldau doctor")
        return UnreachableError(message, hint=hint or GRPC_HINT)
    hint = hint or _HINTS.get(reason, "")
    if reason in _MISSING:
        return NotFoundError(message, hint=hint)
    if reason == "TIMED_OUT":
        return TimedOutError(message, hint=hint)
    if reason == "INVALID_ARGUMENT":
        return InvalidArgumentError(message, hint=hint)
    code = _CODES.get(reason, ErrorCode.UNKNOWN_SERVER_ERROR)
    if reason in _AGAIN:
        return UnavailableError(message, code, hint=hint or "try again in a moment")
    return RejectedError(message, code, hint=hint)


def retries_exhausted_error(
    failures: dict[str, RpcFailure], doing: str, seconds: float
) -> ClientError:
    """Every try failed, for as long as there was time; the last word of each address."""
    tried = ", ".join(dict.fromkeys(f"{each.address} ({each.text})" for each in failures.values()))
    message = f"cannot {doing}: tried {tried or 'nobody'} for {seconds:g} s"
    silent = [each for each in failures.values() if each.is_silent]
    if len(silent) == len(failures):
        if silent and all(each.status is grpc.StatusCode.DEADLINE_EXCEEDED for each in silent):
            return TimedOutError(message, hint="look for trouble: moldau doctor")
        return UnreachableError(message, hint=GRPC_HINT)
    # Somebody is there and has said why it cannot: worth more than who is not there.
    spoken = next(each for each in failures.values() if not each.is_silent)
    return error_for(spoken.reason or spoken.status.name, message, hint=spoken.hint)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _first_words(text: str) -> str:
    """gRPC's core appends all it knows, with braces."""
    return text.partition(";")[0].partition("{")[0].strip().lower() or "unavailable"
