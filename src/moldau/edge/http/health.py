"""Owns /healthz and /readyz: for supervisors, load balancers and those who wait for a start."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.broker import Broker
from moldau.edge.http.responses import RETRY_SECONDS, answer
from moldau.model.topology import Readiness


def routes(broker: Broker) -> list[Route]:
    # Probes append parameters of their own to get past caches: unknown ones are no error here.
    async def alive(request: Request) -> Response:
        """That it answers is the answer: the loop that serves clients runs."""
        return answer({"status": "ok"})

    async def ready(request: Request) -> Response:
        reasons = tuple(broker.cluster.health())
        state = Readiness(ready=not reasons, reasons=reasons)
        if state.ready:
            return answer(state)
        return answer(state, 503, {"retry-after": str(RETRY_SECONDS)})

    return [
        Route("/healthz", alive, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
    ]
