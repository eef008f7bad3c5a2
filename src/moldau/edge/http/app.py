"""Owns the HTTP interface as a whole: its areas put together, and what holds for every request."""

import logging
import re
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import moldau
from moldau.api.broker import Broker
from moldau.api.metric_sources import MetricSources
from moldau.edge.http import (
    cluster,
    groups,
    health,
    metrics,
    openapi,
    queues,
    records,
    tail,
    topics,
    topology,
)
from moldau.edge.http.cors import Cors
from moldau.edge.http.listener import ConnectionCounts, HttpLimits
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.edge.http.responses import (
    answer,
    answer_error,
    answer_http_error,
    answer_refusal,
    check_query,
)
from moldau.model.errors import ErrorCode, RefusedError

log = logging.getLogger(__name__)

_CONVERTER = re.compile(r":\w+(?=})")
"""How a part of a path is read: nothing for those who only want to know the path."""


def build_app(
    broker: Broker,
    vitals: MetricSources,
    *,
    limits: HttpLimits,
    connections: ConnectionCounts,
    cors_origins: Sequence[str] = (),
) -> LimitsMiddleware:
    """The interface over one broker."""
    tails = tail.Tails(broker)

    def traffic() -> metrics.HttpTraffic:
        return metrics.HttpTraffic(connections=connections, gate=gate, tails=tails.count)

    app = _build(
        broker,
        [
            *health.routes(broker),
            *metrics.routes(broker, vitals, traffic),
            *topology.routes(broker),
            *topics.routes(broker),
            *records.routes(broker),
            *tail.routes(tails),
            *groups.routes(broker),
            *queues.routes(broker),
            *cluster.routes(broker),
            *openapi.routes(),
        ],
    )
    gate = LimitsMiddleware(
        app, held_bytes_max=limits.held_bytes_max, cors=Cors(cors_origins), on_stop=tails.stop
    )
    return gate


def _build(broker: Broker, routes: list[Route]) -> Starlette:
    known = [link for route in routes for link in _describe(route)]

    async def root(request: Request) -> Response:
        check_query(request)
        return answer(
            {
                "name": "moldau",
                "version": moldau.__version__,
                "broker": broker.broker_id,
                "cluster": broker.image.cluster_id,
                "links": known,
            }
        )

    async def on_http_error(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code != 404:
            if error.status_code == 405:
                error.detail = f"{request.method} is not possible for {request.scope['path']}"
            return answer_http_error(error)
        return answer_error(
            404,
            ErrorCode.RESOURCE_NOT_FOUND,
            f"There is nothing at {request.scope['path']}",
            hint=f"known: {', '.join(known)}",
        )

    app = Starlette(
        routes=[Route("/", root, methods=["GET"]), *routes],
        exception_handlers={
            RefusedError: _on_refusal,
            HTTPException: on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_defect,
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
    return answer_refusal(error)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody reads it; but a client that hangs up is no defect of ours to be logged."""
    return answer_error(400, ErrorCode.NETWORK_EXCEPTION, "The body ended too early")


async def _on_defect(request: Request, error: Exception) -> Response:
    """The trace goes to the log, and not to the client."""
    log.error("%s %s met a defect", request.method, request.scope["path"], exc_info=error)
    return answer_error(
        500,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "The broker met a defect of its own",
        hint="its log says which",
    )
