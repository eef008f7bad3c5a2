"""Redirects requests that only another broker can serve.

The status is 307, which keeps method and body; `curl -L` and HTTP libraries follow it.
"""

from starlette.requests import Request
from starlette.responses import Response

from moldau.api.session import Session
from moldau.edge.http.responses import respond
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId


def redirect_to(session: Session, other: int, request: Request) -> Response:
    """A redirect to the same path on `other`. Raises RefusedError if it cannot be reached."""
    known = session.cluster.brokers.get(BrokerId(other))
    if known is None or known.http is None:
        raise RefusedError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {other} serves this, but has no HTTP address"
        )
    if other not in session.cluster.alive:
        # A redirect to a dead broker would not help; its successor is elected soon.
        raise RefusedError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {other} serves this, but is not reachable"
        )
    # Undecoded, so that percent-encoding stays as the client sent it.
    path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.scope["path"]
    query = request.scope["query_string"].decode("ascii", "replace")
    target = f"{request.scope['scheme']}://{known.http}{path}" + (f"?{query}" if query else "")
    return respond({"broker": other, "location": target}, 307, {"location": target})
