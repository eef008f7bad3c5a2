"""Reads request bodies and writes responses: JSON, size limits, and a status for each error."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from math import ceil
from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from moldau.edge.http.hints import hint_for
from moldau.model.errors import ErrorCode, QuotaExceededError, RefusedError
from moldau.model.topology import ErrorReply

PROBLEM_TYPE: Final = "application/problem+json"
BODY_BYTES_MAX: Final = 1024 * 1024

DETAIL_CHARS_MAX: Final = 2000
RETRY_SECONDS: Final = 1
_OVER_QUOTA: Final = "retry after Retry-After; an administrator sees quotas by: moldau quota list"

HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every response. Browsers run, frame, guess, cache and pass on nothing of it."""

_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_CONFLICT: Final = frozenset(
    {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    }
)
_FORBIDDEN: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_CODES_OF_STATUS: Final = {404: ErrorCode.RESOURCE_NOT_FOUND, 413: ErrorCode.MESSAGE_TOO_LARGE}

_encoder: Final = msgspec.json.Encoder()

T = TypeVar("T")


def respond(
    body: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    media_type: str = "application/json",
) -> Response:
    return Response(
        _encoder.encode(body),
        status_code=status,
        headers={**HEADERS, **(headers or {})},
        media_type=media_type,
    )


def respond_error(
    status: int,
    code: ErrorCode,
    message: str,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    details = problem(status, code, message, hint)
    return respond(details, status, headers, media_type=PROBLEM_TYPE)


def problem(status: int, code: ErrorCode, message: str, hint: str = "") -> ErrorReply:
    # A name in it may not be valid UTF-8, which would make the response fail.
    words = message.encode("utf-8", "replace").decode("utf-8")
    if len(words) > DETAIL_CHARS_MAX:
        # It repeats what the client sent, which may be as long as a request head.
        words = words[:DETAIL_CHARS_MAX] + "…"
    return ErrorReply(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=words,
        error=code.name,
        hint=hint or hint_for(code, status),
    )


def respond_refusal(error: RefusedError) -> Response:
    if isinstance(error, QuotaExceededError):
        headers = {"retry-after": str(ceil(error.retry_seconds))}
        return respond_error(429, error.code, str(error), _OVER_QUOTA, headers)
    status = status_of(error.code)
    return respond_error(status, error.code, str(error), error.hint, retry_headers(status))


def error_event(error: RefusedError) -> bytes:
    """The last event of a stream that ends early."""
    details = problem(status_of(error.code), error.code, str(error), error.hint)
    return b"event: error\ndata: %b\n\n" % _encoder.encode(details)


def retry_headers(status: int) -> Mapping[str, str]:
    """Retry-After, for responses that a retry may change."""
    return {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}


def respond_http_error(error: HTTPException) -> Response:
    """An error of the router, or of reading the body."""
    status = error.status_code
    code = _CODES_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST)
    hint = ""
    if status == 405 and error.headers is not None:
        hint = f"allowed: {error.headers.get('Allow', '')}"
    elif status == 415:
        hint = "send uncompressed JSON with Content-Type: application/json"
    return respond_error(status, code, error.detail, hint, headers=error.headers)


def status_of(code: ErrorCode) -> int:
    if code in _NOT_FOUND:
        return 404
    if code in _CONFLICT:
        return 409
    if code in _FORBIDDEN:
        return 403
    if code is ErrorCode.SASL_AUTHENTICATION_FAILED:
        return 401
    if code.is_unavailable:
        return 503
    return 500 if code is ErrorCode.UNKNOWN_SERVER_ERROR else 400


async def read_body(
    request: Request, decode: Callable[[bytearray], T], *, bytes_max: int | None = None
) -> T:
    """The decoded body. Raises HTTPException or RefusedError."""
    _check_media_type(request)
    body = await read_raw(request, BODY_BYTES_MAX if bytes_max is None else bytes_max)
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Invalid request body: {error}") from None


async def read_raw(request: Request, bytes_max: int) -> bytearray:
    """The body. Raises HTTPException or RefusedError."""
    body = bytearray()
    # The server has checked that it is a number.
    if int(request.headers.get("content-length", "0")) > bytes_max:
        raise _too_large(bytes_max)
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
    return body


def _check_media_type(request: Request) -> None:
    """Requires a JSON Content-Type, which an HTML form of another web site cannot send."""
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise HTTPException(415, "Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "The body must not be compressed")


def _too_large(bytes_max: int) -> HTTPException:
    # The server discards the rest as it arrives, until the request times out: closing at once would
    # reset the connection, and the client would not see this response.
    return HTTPException(413, f"The body is too large; the limit is {bytes_max} bytes")


def check_query(request: Request, *known: str) -> None:
    """Rejects unknown parameters: ignoring a misspelled one would return something else."""
    for name in request.query_params:
        if name not in known:
            accepted = f"accepted: {', '.join(known)}" if known else "none are accepted"
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Unknown query parameter '{name}'; {accepted}"
            )
