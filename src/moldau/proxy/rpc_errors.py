"""Returns failures to clients of the proxy: a broker's rejection unchanged, else what was tried."""

from math import ceil
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from moldau.client.errors import ClientError
from moldau.client.queue.rpc import CallFailed
from moldau.client.queue.settler import SettleResult
from moldau.proto.trailers import (
    HINT_TRAILER,
    REASON_TRAILER,
    RETRY_TRAILER,
    UNCERTAIN_TRAILER,
    encode_text,
)
from moldau.proto.v1 import queue_pb2 as pb

Context = aio.ServicerContext[Any, Any]

TEXT_LENGTH_MAX: Final = 1_000
"""The size of trailers is limited."""
_HINT: Final = "the brokers behind the proxy do not respond; find the cause: moldau doctor"
_LOGIN_HINT: Final = "send authorization metadata: Basic, or Bearer with a token"

_STATUS: Final[dict[int, grpc.StatusCode]] = {
    pb.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.UNKNOWN_CONSUMER: grpc.StatusCode.NOT_FOUND,
    pb.UNKNOWN_GROUP: grpc.StatusCode.NOT_FOUND,
    pb.UNKNOWN_TOPIC: grpc.StatusCode.NOT_FOUND,
}


def authorization_of(context: Context) -> str:
    """The credentials that a client sent; empty: none."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""


class InvalidRequest(Exception):
    """A request that is invalid; the text says why."""


async def refuse(context: Context, error: CallFailed | InvalidRequest) -> NoReturn:
    """End the call with the failure."""
    if isinstance(error, InvalidRequest):
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", str(error))
    failure = error.failure
    is_outage = failure.is_retriable and len(error.failures) > 1 and not failure.retry_seconds
    if failure.reason and not is_outage:
        await _abort(
            context,
            failure.status,
            failure.reason,
            failure.text,
            hint=failure.hint,
            is_uncertain=failure.is_uncertain,
            retry_seconds=failure.retry_seconds,
        )
    await _abort(
        context,
        grpc.StatusCode.UNAVAILABLE if failure.is_retriable else failure.status,
        "UNAVAILABLE" if failure.is_retriable else "INTERNAL",
        "no broker could be reached: " + ", ".join(map(str, error.failures.values())),
        hint=_HINT,
        is_uncertain=failure.is_uncertain,
    )


async def refuse_unknown(context: Context) -> NoReturn:
    """End a call of a client that does not say who it is."""
    await _abort(
        context,
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
        "Authentication is needed",
        hint=_LOGIN_HINT,
    )


async def refuse_all(context: Context, result: SettleResult) -> NoReturn:
    """End the call with the result that all its tokens share."""
    status = _STATUS.get(result.reason, grpc.StatusCode.FAILED_PRECONDITION)
    await _abort(context, status, result.name, result.message)


async def _abort(
    context: Context,
    status: grpc.StatusCode,
    reason: str,
    text: str,
    *,
    hint: str = "",
    is_uncertain: bool = False,
    retry_seconds: float = 0.0,
) -> NoReturn:
    trailers = [(REASON_TRAILER, reason)]
    if hint:
        trailers.append((HINT_TRAILER, encode_text(hint[:TEXT_LENGTH_MAX])))
    if is_uncertain:
        trailers.append((UNCERTAIN_TRAILER, "true"))
    if retry_seconds:
        trailers.append((RETRY_TRAILER, str(ceil(retry_seconds * 1000))))
    await context.abort(status, text[:TEXT_LENGTH_MAX], tuple(trailers))
    raise ClientError("the call was aborted")
