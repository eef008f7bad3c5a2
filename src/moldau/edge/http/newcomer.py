"""What a broker serves over HTTP while it has no cluster: that it runs, and that it is new.

The other initial members ask for it before the first one bootstraps the cluster (server/formation).
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.console_files import accepts_page
from moldau.edge.http.responses import HEADERS, respond, respond_error, retry_headers
from moldau.model.errors import ErrorCode
from moldau.model.topology import JoinChallenge, Readiness

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Moldau</title>'
    "<h1>This broker has no cluster yet</h1><p>{state}</p>"
    "<p>This page tries again by itself.</p></html>"
)
_PAGE_SECONDS: Final = 2


def build_newcomer_app(
    me: str, initial_members: Sequence[str], is_new: bool, state: Callable[[], str]
) -> Starlette:
    """`me`: the HTTP address that the broker advertises. `is_new`: the data directory belongs to no
    cluster; else it only says that it is waiting."""

    async def alive(request: Request) -> Response:
        return respond({"status": "ok"})

    async def ready(request: Request) -> Response:
        reply = Readiness(ready=False, reasons=(state(),))
        return respond(reply, 503, retry_headers(503))

    async def challenge(request: Request) -> Response:
        if is_new:
            names = tuple(initial_members)
            return respond(JoinChallenge(challenge=b"", initial_members=names, newcomer=me))
        raise HTTPException(404)

    def nothing_else(request: Request, error: Exception) -> Response:
        if accepts_page(request.scope):
            headers = {**HEADERS, **retry_headers(503), "refresh": str(_PAGE_SECONDS)}
            page = _PAGE.format(state=escape(state()))
            return Response(page, 503, headers=headers, media_type="text/html")
        # Not "there is no such path": who has several addresses goes on with the next one.
        code = ErrorCode.BROKER_NOT_AVAILABLE
        return respond_error(503, code, state(), headers=retry_headers(503))

    return Starlette(
        routes=[
            Route("/healthz", alive, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
            Route("/api/v1/cluster/join/challenge", challenge, methods=["GET"]),
        ],
        exception_handlers={404: nothing_else, 405: nothing_else},
    )
