"""Lets requests in: finds out who sent each, and gives it a session.

Every path needs a client that is known, where the listener asks who its clients are, except those
in `PUBLIC` and the files of the web console. What a known client may do is decided by the session,
not here.
"""

from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moldau.api.entrance import Entrance, Visit
from moldau.api.session import Session
from moldau.edge.http.client_connections import traffic_of
from moldau.edge.http.console_files import is_for_everyone
from moldau.edge.http.relay.messages import Visitor
from moldau.edge.http.relay.serving import RELAYED
from moldau.edge.http.responses import respond_error, respond_refusal
from moldau.model.errors import ErrorCode, QuotaExceededError, RefusedError
from moldau.net.networks import network_of
from moldau.security.principal import ANONYMOUS
from moldau.security.sasl import AuthenticationError

LOGIN_PATH: Final = "/api/v1/login"

PUBLIC: Final = {
    ("GET", "/healthz"): "load balancers probe it; it says nothing",
    ("GET", "/readyz"): "load balancers probe it; unknown clients do not get the reasons",
    ("POST", LOGIN_PATH): "it is the way to become known",
    ("GET", "/api/v1/cluster/join/challenge"): "brokers ask for it before they can prove anything",
    (
        "POST",
        "/api/v1/cluster/join",
    ): "brokers have no user; the request proves its right",
}
"""Served to everyone, and why."""
METRICS: Final = ("GET", "/metrics")
"""Served to everyone if `http.public_metrics` says so."""

CERTIFICATE: Final = "moldau.certificate"
"""In the state of a connection: the certificate that its client has proved."""
_VISIT: Final = "moldau.visit"
_CHALLENGES: Final = (
    (b"www-authenticate", b'Bearer realm="moldau"'),
    (b"www-authenticate", b'Basic realm="moldau", charset="UTF-8"'),
)


class Visits:
    """The layer around the application."""

    def __init__(self, app: ASGIApp, entrance: Entrance) -> None:
        self._app = app
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_for_all = is_for_everyone(scope)
        is_public = is_for_all or self._is_public(scope)
        try:
            # A login that has ended must not keep out the page that asks for the next one.
            visit = await self._enter(scope, is_public=is_public, as_nobody=is_for_all)
        except AuthenticationError as error:
            await respond_unknown(error)(scope, receive, send)
            return
        except QuotaExceededError as error:
            await respond_refusal(error)(scope, receive, send)
            return
        scope[_VISIT] = visit
        if not is_public and (traffic := traffic_of(scope)) is not None:
            principal = visit.session.principal
            traffic.user = "" if principal == ANONYMOUS else principal.name
        work = self._app(scope, receive, send)
        # Unknown clients may ask for what is public: nobody pays for them.
        await (work if is_public else visit.charged(work))

    async def _enter(self, scope: Scope, *, is_public: bool, as_nobody: bool) -> Visit:
        """Raises AuthenticationError, QuotaExceededError."""
        visitor: Visitor | None = scope.get(RELAYED)
        if visitor is not None:
            return self._entrance.enter_relayed(
                visitor.principal, visitor.host, visitor.access, visitor.expires_at_ms
            )
        if as_nobody:
            return await self._entrance.enter([], host_of(scope), is_public=True)
        return await self._entrance.enter(
            [
                value.decode("latin-1")
                for name, value in scope["headers"]
                if name == b"authorization"
            ],
            host_of(scope),
            certificate=scope.get("state", {}).get(CERTIFICATE),
            is_public=is_public,
        )

    def _is_public(self, scope: Scope) -> bool:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        asked = (method, scope["path"])
        return asked in PUBLIC or (asked == METRICS and self._entrance.has_public_metrics)


def visit_of(request: HTTPConnection) -> Visit:
    visit: Visit = request.scope[_VISIT]
    return visit


def session_of(request: HTTPConnection) -> Session:
    return visit_of(request).session


def check_login(visit: Visit) -> None:
    """Before each part of a stream. Raises RefusedError."""
    try:
        visit.check()
    except AuthenticationError as error:
        raise RefusedError(ErrorCode.SASL_AUTHENTICATION_FAILED, error.text) from None


def host_of(scope: Scope) -> str:
    """The address of the client."""
    client = scope.get("client")
    return client[0] if client else ""


def holder_of(scope: Scope) -> str:
    """Whose share of the broker's memory a request takes: its user's, or its address's."""
    visit: Visit | None = scope.get(_VISIT)
    if visit is None or visit.session.principal == ANONYMOUS:
        return network_of(host_of(scope))
    return str(visit.session.principal)


def respond_unknown(error: AuthenticationError) -> Response:
    """401: the client is not known, as opposed to known and without rights."""
    reply = respond_error(
        401,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        error.text,
        hint=f"send Authorization: Basic, or Bearer with a token of POST {LOGIN_PATH}",
    )
    reply.raw_headers.extend(_CHALLENGES)
    return reply
