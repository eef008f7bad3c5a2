"""Owns one request over HTTP: JSON there, JSON back, with an end to every wait.

http.client is imported when it is needed: most commands speak Kafka only.
"""

import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from http.client import HTTPResponse

REPLY_BYTES_MAX: Final = 384 * 1024 * 1024
"""The largest image of a cluster's metadata, in base64, fits."""

_JSON_KINDS: Final = ("application/json", "application/problem+json")
_PIECE_BYTES: Final = 256 * 1024


class NoResponse(Exception):
    """Nobody answered; the text says why, in few words."""


class ResponseTimedOut(NoResponse):
    """Somebody is there, but the answer did not come in time."""


class HttpResponse(NamedTuple):
    """A reply as it came, whatever its status."""

    status: int
    is_json: bool
    body: bytes


def call(
    host: str, port: int, method: str, path: str, body: bytes | None, *, seconds_max: float
) -> HttpResponse:
    """One request on a connection of its own. Raises NoAnswer."""
    from http.client import HTTPConnection, HTTPException

    deadline = time.monotonic() + seconds_max
    connection = HTTPConnection(host, port, timeout=seconds_max)
    headers = {"accept": "application/json", "connection": "close"}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        kind = (response.getheader("content-type") or "").partition(";")[0].strip().lower()
        return HttpResponse(response.status, kind in _JSON_KINDS, _read(response, deadline))
    except TimeoutError:
        raise ResponseTimedOut(f"no answer within {seconds_max:g} s") from None
    except socket.gaierror:
        raise NoResponse("no such host") from None
    except ConnectionRefusedError:
        raise NoResponse("connection refused") from None
    except ConnectionError:
        raise NoResponse("it hung up without an answer") from None
    except HTTPException:
        raise NoResponse("what answers there does not speak HTTP") from None
    except OSError as error:
        raise NoResponse((error.strerror or str(error)).lower()) from None
    finally:
        connection.close()


def _read(response: "HTTPResponse", deadline: float) -> bytes:
    """All of the body. The socket's own timeout bounds each wait, this the sum of them."""
    pieces = bytearray()
    # What is there, not as much as asked for: that could take as long as the sender likes.
    while piece := response.read1(_PIECE_BYTES):
        pieces += piece
        if len(pieces) > REPLY_BYTES_MAX:
            raise NoResponse(f"its answer has more than {REPLY_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise NoResponse("it hung up in the middle of its answer")
    return bytes(pieces)
