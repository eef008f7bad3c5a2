"""Routes with one handler per method, as one route: so a 405 lists all allowed methods."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]


def by_method(path: str, **handlers: Handler) -> Route:
    """`by_method("/x", GET=show, POST=make)`; HEAD comes with GET."""

    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return Route(path, handle, methods=list(handlers))
