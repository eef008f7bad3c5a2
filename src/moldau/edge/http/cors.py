"""Decides which web origins may read the broker's responses (CORS): none, unless configured.

Without permission a browser hides responses from pages of other origins, and does not send their
writes: bodies need a JSON Content-Type, which needs a preflight. DNS rebinding makes a foreign page
look local to the browser, but its writes still carry an Origin header, and the broker serves no
pages of its own; so every write with an Origin that is not allowed is rejected.
"""

from collections.abc import Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from moldau.edge.http.responses import respond_error
from moldau.model.errors import ErrorCode

ANY: Final = "*"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, HEAD, POST, DELETE",
    "access-control-allow-headers": "content-type, last-event-id",
    "access-control-max-age": "600",
}
_EXPOSED: Final = b"location, retry-after"


class Cors:
    """The allowed origins; `*` allows all."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)

    def _allowed(self, scope: Scope) -> bytes | None:
        """The value of Access-Control-Allow-Origin; None if the origin is not allowed."""
        if not self._origins:
            return None
        if ANY.encode() in self._origins:
            return ANY.encode()
        for name, value in scope["headers"]:
            if name == b"origin" and value in self._origins:
                return bytes(value)
        return None

    def refusal(self, scope: Scope) -> Response | None:
        """The 403 response to a write from an origin that is not allowed."""
        if scope["method"] in _READS:
            return None
        if all(name != b"origin" for name, _ in scope["headers"]) or self._allowed(scope):
            return None
        return respond_error(
            403,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Web pages of this origin may not change anything",
            hint="add the origin to the broker's setting http.cors_origins",
        )

    def preflight(self, scope: Scope) -> Response | None:
        """The response to a preflight request; None if this is not one."""
        if scope["method"] != "OPTIONS" or self._allowed(scope) is None:
            return None
        names = {name for name, _ in scope["headers"]}
        if b"access-control-request-method" not in names or b"origin" not in names:
            return None
        return Response(status_code=204, headers=_PREFLIGHT)

    def wrap(self, scope: Scope, send: Send) -> Send:
        """A `send` that adds the CORS headers."""
        if not self._origins:
            return send
        allowed = self._allowed(scope)

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Also without permission: a cache must not serve this reply to another origin.
                extra = [(b"vary", b"origin")]
                if allowed is not None:
                    extra.append((b"access-control-allow-origin", allowed))
                    extra.append((b"access-control-expose-headers", _EXPOSED))
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        return send_with_cors
