"""Builds the HTTP application: all routes, the error handlers and the middleware."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import moldau
from moldau import tracing
from moldau.api.entrance import Entrance
from moldau.api.metric_sources import MetricSources
from moldau.edge.http import (
    backup,
    cluster,
    console_files,
    group_changes,
    groups,
    health,
    joins,
    live,
    log_levels,
    login,
    me,
    metrics,
    openapi,
    overview,
    pipelines,
    play,
    queue_admin,
    queues,
    raft,
    records,
    report,
    search,
    tail,
    topic_changes,
    topic_queries,
    topics,
    topology,
    transactions,
)
from moldau.edge.http import (
    connections as connection_list,
)
from moldau.edge.http.cors import Cors
from moldau.edge.http.hosts import Hosts
from moldau.edge.http.limits import ConnectionCounts, HttpLimits
from moldau.edge.http.metrics.clients import HttpTraffic
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.edge.http.node.link import NodeLinks
from moldau.edge.http.node.merge import Node
from moldau.edge.http.relay.asking import Relay
from moldau.edge.http.responses import (
    check_query,
    respond,
    respond_error,
    respond_http_error,
    respond_refusal,
)
from moldau.edge.http.visits import Visits, session_of
from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, RefusedError

if TYPE_CHECKING:
    from moldau.tracing.otel import OtelTracer

log = logging.getLogger(__name__)

_CONVERTER = re.compile(r":\w+(?=})")
"""The converter of a path parameter, which is left out when routes are listed."""


def build_app(
    entrance: Entrance,
    sources: MetricSources,
    *,
    limits: HttpLimits,
    connections: ConnectionCounts,
    relay: Relay,
    hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    console: Path = console_files.FOLDER,
    node: NodeLinks | None = None,
) -> LimitsMiddleware:
    whole = None if node is None else Node(node)
    tails = tail.Tails(entrance.sessions.wake_fetches)

    def traffic() -> HttpTraffic:
        return HttpTraffic(connections=connections, middleware=middleware, tails=tails.count)

    app = _build(
        [
            *health.routes(whole),
            *metrics.routes(sources, traffic, whole),
            *login.routes(entrance),
            *me.routes(entrance),
            *topology.routes(),
            *overview.routes(overview.OverviewStreams()),
            *report.routes(sources),
            *topics.routes(),
            *topic_changes.routes(),
            *topic_queries.routes(),
            *records.routes(),
            *search.routes(),
            *tail.routes(tails),
            *group_changes.routes(),
            *live.routes(tails),
            *groups.routes(),
            *queues.routes(),
            *queue_admin.routes(),
            *transactions.routes(),
            *pipelines.routes(),
            *cluster.routes(),
            *log_levels.routes(),
            *connection_list.routes(),
            *raft.routes(),
            *play.routes(),
            *joins.routes(),
            *backup.routes(),
            *openapi.routes(),
        ],
        console_files.routes(console),
    )
    app.state.relay = relay

    def stop() -> None:
        tails.stop()
        relay.stop()

    middleware = LimitsMiddleware(
        Visits(app if tracing.active is None else _traced(app, tracing.active), entrance),
        buffered_bytes_max=limits.buffered_bytes_max,
        hosts=Hosts(hosts),
        cors=Cors(cors_origins),
        on_stop=stop,
    )
    return middleware


def _traced(app: Starlette, tracer: "OtelTracer") -> ASGIApp:
    from moldau.edge.http.traced import Traced

    return Traced(app, tracer)


def _build(routes: list[Route], pages: list[Route]) -> Starlette:
    """`pages` are for people: they are no part of the interface, which lists its routes."""
    known = [link for route in routes for link in _describe(route)]

    async def root(request: Request) -> Response:
        if console_files.wants_page(request.scope):
            return console_files.lead_to_console()
        check_query(request)
        session = session_of(request)
        return respond(
            {
                "name": "moldau",
                "version": moldau.__version__,
                "broker": session.broker_id,
                "cluster": session.cluster.cluster_id,
                "links": known,
            }
        )

    async def on_http_error(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code != 404:
            if error.status_code == 405:
                error.detail = f"{request.method} is not allowed for {request.scope['path']}"
            return respond_http_error(error)
        return respond_error(
            404,
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Path {request.scope['path']} not found",
            hint=f"available: {', '.join(known)}",
        )

    app = Starlette(
        routes=[Route("/", root, methods=["GET"]), *routes, *pages],
        exception_handlers={
            RefusedError: _on_refusal,
            HTTPException: on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_internal_error,
        },
    )
    app.router.redirect_slashes = False
    return app


def _describe(route: Route) -> list[str]:
    methods = sorted((route.methods or set()) - {"HEAD"})
    path = _CONVERTER.sub("", route.path)
    return [f"{method} {path}" for method in methods]


async def _on_refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, RefusedError):
        raise error
    return respond_refusal(error)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client does not see this; it only keeps a disconnect out of the error log."""
    return respond_error(400, ErrorCode.NETWORK_EXCEPTION, "The client disconnected")


async def _on_internal_error(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, not to the client."""
    path = request.scope["path"]
    log.error(
        "internal error while handling %s %s",
        request.method,
        path,
        exc_info=error,
        extra=events.INTERNAL_ERROR(),
    )
    return respond_error(
        500,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "Internal error of the broker",
        hint="see the broker's log for details",
    )
