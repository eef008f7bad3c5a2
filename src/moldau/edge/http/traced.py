"""Records a span for each request of the API, in the trace of its client."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moldau.tracing.otel import OtelTracer

_ENDLESS = "/tail"
"""A response that ends when its client leaves says nothing as a span."""


class Traced:
    """The layer around the application; only there if the broker traces."""

    def __init__(self, app: ASGIApp, tracer: OtelTracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith("/api/v1/") or path.endswith(_ENDLESS):
            await self._app(scope, receive, send)
            return
        given = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
        method = scope["method"]
        attributes = {"http.request.method": method, "url.path": path}
        with self._tracer.request(method, given, attributes) as span:

            async def observed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, observed)
            route = getattr(scope.get("route"), "path", "")
            if route:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
