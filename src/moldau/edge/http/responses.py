"""Owns how requests are read and answers are written: JSON, bounds, and a status for each error."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from moldau.api.retriable import PASSING
from moldau.edge.http.hints import hint_for
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import ErrorReply

PROBLEM_TYPE: Final = "application/problem+json"
BODY_BYTES_MAX: Final = 1024 * 1024

DETAIL_CHARS_MAX: Final = 2000
RETRY_SECONDS: Final = 1

HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
_CONFLICT: Final = frozenset(
    {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    }
)
_CODES_OF_STATUS: Final = {404: ErrorCode.RESOURCE_NOT_FOUND, 413: ErrorCode.MESSAGE_TOO_LARGE}

_encoder: Final = msgspec.json.Encoder()

T = TypeVar("T")


def answer(
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


def answer_error(
    status: int,
    code: ErrorCode,
    message: str,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    details = problem(status, code, message, hint)
    return answer(details, status, headers, media_type=PROBLEM_TYPE)


def problem(status: int, code: ErrorCode, message: str, hint: str = "") -> ErrorReply:
    # A name in it may be no text in UTF-8, and would end the answer instead of the question.
    words = message.encode("utf-8", "replace").decode("utf-8")
    if len(words) > DETAIL_CHARS_MAX:
        # It repeats what a client sent, which may be as long as a head can be.
        words = words[:DETAIL_CHARS_MAX] + "…"
    return ErrorReply(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=words,
        error=code.name,
        hint=hint or hint_for(code, status),
    )


def answer_refusal(error: RefusedError) -> Response:
    status = status_of(error.code)
    return answer_error(status, error.code, str(error), error.hint, retry_headers(status))


def retry_headers(status: int) -> Mapping[str, str]:
    """When to come again, if that may help."""
    return {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}


def answer_http_error(error: HTTPException) -> Response:
    """What the router or the reading of the body refused."""
    status = error.status_code
    code = _CODES_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST)
    hint = ""
    if status == 405 and error.headers is not None:
        hint = f"possible: {error.headers.get('Allow', '')}"
    elif status == 415:
        hint = "send it as it is, with Content-Type: application/json"
    return answer_error(status, code, error.detail, hint, headers=error.headers)


def status_of(code: ErrorCode) -> int:
    if code in _NOT_FOUND:
        return 404
    if code in _CONFLICT:
        return 409
    if code in PASSING:
        return 503
    return 500 if code is ErrorCode.UNKNOWN_SERVER_ERROR else 400


async def read_body(
    request: Request, decode: Callable[[bytearray], T], *, bytes_max: int | None = None
) -> T:
    """The body as what `decode` makes of it. Raises HTTPException or RefusedError."""
    _check_media_type(request)
    if bytes_max is None:
        bytes_max = BODY_BYTES_MAX
    body = bytearray()
    if _announced_bytes(request) > bytes_max:
        raise _too_large(bytes_max)
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"The body is not as expected: {error}"
        ) from None


def _check_media_type(request: Request) -> None:
    """Only what says that it is JSON: a form on a foreign web page cannot say so."""
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise HTTPException(415, "The body must be application/json; say so in Content-Type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "The body must not be compressed")


def _announced_bytes(request: Request) -> int:
    # The server has checked that it is a number.
    return int(request.headers.get("content-length", "0"))


def _too_large(bytes_max: int) -> HTTPException:
    # The server throws the rest away as it comes, for as long as a request may take to arrive:
    # closing at once would reset the connection, and the client never read why.
    return HTTPException(413, f"The body may have {bytes_max} bytes")


def check_query(request: Request, *known: str) -> None:
    """A parameter that is not known would be ignored, and the answer another than was meant."""
    for name in request.query_params:
        if name not in known:
            knows = f"known: {', '.join(known)}" if known else "there are none"
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Unknown query parameter '{name}'; {knows}"
            )
