"""/healthz and /readyz: for supervisors, load balancers and start scripts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.responses import RETRY_SECONDS, respond
from moldau.edge.http.visits import visit_of
from moldau.model.topology import Readiness


def routes() -> list[Route]:
    # Probes append parameters to bypass caches, so unknown ones are ignored here.
    async def alive(request: Request) -> Response:
        """Any response means that the event loop runs."""
        return respond({"status": "ok"})

    async def ready(request: Request) -> Response:
        visit = visit_of(request)
        reasons = tuple(visit.session.cluster.health())
        # They name brokers, which is nothing for unknown clients.
        shown = () if visit.is_unknown else reasons
        state = Readiness(ready=not reasons, reasons=shown)
        if state.ready:
            return respond(state)
        return respond(state, 503, {"retry-after": str(RETRY_SECONDS)})

    return [Route("/healthz", alive, methods=["GET"]), Route("/readyz", ready, methods=["GET"])]
