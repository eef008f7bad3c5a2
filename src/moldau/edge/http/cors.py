"""Decides which web pages may use the broker: those of its own origin, and of those configured.

Without permission a browser hides responses from pages of other origins (CORS), but it still sends
many of their requests. So the broker refuses them: by Origin, which browsers send with every write
and with every read that a page wants to see, and by Sec-Fetch-Site, which they also send where
Origin is missing (images, scripts, frames). A page cannot forge either. Programs send neither.

A page whose name was rebound to this machine does count as the same origin: `hosts` refuses it.
"""

from collections.abc import Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from moldau.edge.http.hosts import parse_authority
from moldau.edge.http.responses import HEADERS, respond_error
from moldau.model.errors import ErrorCode

ANY: Final = b"*"
_READS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site; `none` is a request by the user, not by a page."""
_ALLOWED_HEADERS: Final = "content-type, last-event-id"
_PREFLIGHT: Final = {
    **HEADERS,
    "access-control-allow-methods": "GET, HEAD, POST, PATCH, DELETE",
    "access-control-max-age": "600",
}
_EXPOSED: Final = b"location, retry-after, www-authenticate"
_PORTS: Final = {"http": 80, "https": 443}


class Cors:
    """The allowed origins; `*` allows all, but lets no page send credentials."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)

    def _allowed(self, origin: bytes | None) -> bytes | None:
        """The value of Access-Control-Allow-Origin; None if the origin is not allowed."""
        if origin is not None and origin in self._origins:
            return origin
        return ANY if ANY in self._origins else None

    def refusal(self, scope: Scope) -> Response | None:
        """The 403 response to a request of a page that may not use the broker."""
        headers = _first_values(scope)
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if self._allowed(origin) is not None or site in _OWN_SITES:
            return None
        if origin is None:
            if site is None or _is_followed_link(scope["method"], headers):
                return None
        elif site is None and _is_own_origin(origin, headers.get(b"host", b""), scope["scheme"]):
            return None
        return respond_error(
            403,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Web pages of this origin may not use this broker",
            hint="add the origin to the broker's setting http.cors_origins",
        )

    def preflight(self, scope: Scope) -> Response | None:
        """The response to a preflight request; None if this is not one."""
        if scope["method"] != "OPTIONS":
            return None
        headers = _first_values(scope)
        origin = headers.get(b"origin")
        allowed = self._allowed(origin)
        if allowed is None or origin is None or b"access-control-request-method" not in headers:
            return None
        # Every page of the world may not guess passwords through its visitors' browsers.
        named = _ALLOWED_HEADERS if allowed == ANY else f"authorization, {_ALLOWED_HEADERS}"
        return Response(
            status_code=204, headers={**_PREFLIGHT, "access-control-allow-headers": named}
        )

    def wrap(self, scope: Scope, send: Send) -> Send:
        """A `send` that adds the CORS headers."""
        if not self._origins:
            return send
        allowed = self._allowed(_first_values(scope).get(b"origin"))

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


def _first_values(scope: Scope) -> dict[bytes, bytes]:
    return dict(reversed(scope["headers"]))


def _is_followed_link(method: str, headers: dict[bytes, bytes]) -> bool:
    """A link of another site that the user follows: the page that had it sees nothing of it."""
    return (
        method in _READS
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _is_own_origin(origin: bytes, host: bytes, scheme: str) -> bool:
    """For browsers that do not send Sec-Fetch-Site, as to plain HTTP on another machine."""
    origin_scheme, _, authority = origin.decode("latin-1").lower().partition("://")
    default = _PORTS.get(scheme)
    named, own = parse_authority(authority), parse_authority(host.decode("latin-1"))
    if origin_scheme != scheme or named is None or own is None:
        return False
    return (named.host, named.port or default) == (own.host, own.port or default)
