"""Owns which web pages of other origins may read what a broker answers: none, unless configured.

Without it a browser shows no answer to a foreign page, and sends nothing that changes anything:
bodies must say that they are JSON, which a form cannot, and what can is asked for first. A page
whose name was made to point here (DNS rebinding) is no foreign one to the browser, but it tells its
origin when it writes; and a broker has no pages of its own.
"""

from collections.abc import Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from moldau.edge.http.responses import answer_error
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
    """The origins that are allowed; `*` is all of them."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)

    def _allowed(self, scope: Scope) -> bytes | None:
        """What to say to the one who asks, if it may."""
        if not self._origins:
            return None
        if ANY.encode() in self._origins:
            return ANY.encode()
        for name, value in scope["headers"]:
            if name == b"origin" and value in self._origins:
                return bytes(value)
        return None

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a page that would change something and is not allowed to."""
        if scope["method"] in _READS:
            return None
        if all(name != b"origin" for name, _ in scope["headers"]) or self._allowed(scope):
            return None
        return answer_error(
            403,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "A web page of this origin may change nothing here",
            hint="name its origin in the broker's setting http.cors_origins",
        )

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks before it sends; None if this is no such question."""
        if scope["method"] != "OPTIONS" or self._allowed(scope) is None:
            return None
        names = {name for name, _ in scope["headers"]}
        if b"access-control-request-method" not in names or b"origin" not in names:
            return None
        return Response(status_code=204, headers=_PREFLIGHT)

    def wrap(self, scope: Scope, send: Send) -> Send:
        """A `send` that tells the browser who may read the reply."""
        if not self._origins:
            return send
        allowed = self._allowed(scope)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Also without permission: a cache must not give this reply to another origin.
                extra = [(b"vary", b"origin")]
                if allowed is not None:
                    extra.append((b"access-control-allow-origin", allowed))
                    extra.append((b"access-control-expose-headers", _EXPOSED))
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        return told
