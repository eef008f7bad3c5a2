"""One HTTP or HTTPS request with a JSON response, and a deadline; the body is JSON, mostly.

http.client is imported on first use: most commands only use the Kafka protocol.
"""

import socket
import ssl
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.client.errors import UnreachableError
from moldau.client.security import PLAIN_TEXT, Security, Tls, check_may_send, tls_context

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

REPLY_BYTES_MAX: Final = 384 * 1024 * 1024
"""Fits the largest metadata image of a cluster, in base64."""

_JSON_KINDS: Final = ("application/json", "application/problem+json")
_PIECE_BYTES: Final = 256 * 1024


class NoResponse(Exception):
    """No response; the text is a short reason."""


class NotHttp(NoResponse):
    """The server was reached, and did not respond as one of HTTP does."""


class ResponseTimedOut(NoResponse):
    """The server was reached, but did not respond in time."""


class HttpResponse(NamedTuple):
    """A response of any status."""

    status: int
    is_json: bool
    body: bytes


def call(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    *,
    seconds_max: float,
    security: Security = PLAIN_TEXT,
    media_type: str = "application/json",
) -> HttpResponse:
    """Send one request on a new connection, with TLS if `security` has it.

    Raises NoResponse, and ClientError for a certificate that is not trusted, or if credentials
    would be sent in plain text.
    """
    from http.client import HTTPException

    if security.sasl is not None and security.tls is None:
        check_may_send(host, security.prefix)
    deadline = time.monotonic() + seconds_max
    connection = _connection(host, port, security.tls, seconds_max)
    headers = {"accept": "application/json", "connection": "close"}
    if body is not None:
        headers["content-type"] = media_type
    if security.authorization:
        headers["authorization"] = security.authorization
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        kind = (response.getheader("content-type") or "").partition(";")[0].strip().lower()
        return HttpResponse(response.status, kind in _JSON_KINDS, _read(response, deadline))
    except TimeoutError:
        raise ResponseTimedOut(f"timed out after {seconds_max:g} s") from None
    except socket.gaierror:
        raise NoResponse("no such host") from None
    except ConnectionRefusedError:
        raise NoResponse("connection refused") from None
    except ConnectionError:
        raise NotHttp("it closed the connection without a response") from None
    except HTTPException:
        raise NotHttp("the server there does not speak HTTP") from None
    except OSError as error:
        if security.tls is not None and isinstance(error, ssl.SSLError):
            failed = security.tls.failure(error, f"{host}:{port}")
            if isinstance(failed, UnreachableError):
                raise NoResponse(str(failed)) from None
            raise failed from None
        raise NoResponse((error.strerror or str(error)).lower()) from None
    finally:
        connection.close()


def _connection(host: str, port: int, tls: Tls | None, seconds_max: float) -> "HTTPConnection":
    from http.client import HTTPConnection, HTTPSConnection

    if tls is None:
        return HTTPConnection(host, port, timeout=seconds_max)
    return HTTPSConnection(host, port, timeout=seconds_max, context=tls_context(tls))


def _read(response: "HTTPResponse", deadline: float) -> bytes:
    """The whole body. The socket's timeout bounds each read, `deadline` all of them."""
    pieces = bytearray()
    # read1 returns what has arrived; read could block for as long as the sender likes.
    while piece := response.read1(_PIECE_BYTES):
        pieces += piece
        if len(pieces) > REPLY_BYTES_MAX:
            raise NoResponse(f"its response exceeds {REPLY_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise NoResponse("it closed the connection in the middle of the response")
    return bytes(pieces)
