"""/healthz and /readyz: for supervisors, load balancers and start scripts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.node.merge import HUNG, OK, Node
from moldau.edge.http.responses import RETRY_SECONDS, respond
from moldau.edge.http.visits import visit_of
from moldau.model.topology import Readiness


def routes(node: Node | None = None) -> list[Route]:
    """`node`: whose processes are asked, too, at the address that they share."""

    # Probes append parameters to bypass caches, so unknown ones are ignored here.
    async def alive(request: Request) -> Response:
        """Any response means that the event loop runs. Of a node, those of all its processes; one
        that ended is restarted anyway."""
        if node is None or not node.is_meant(request.scope):
            return respond({"status": OK})
        states = await node.health()
        is_hung = HUNG in states.values()
        shown = {str(number): state for number, state in states.items()}
        reply = {"status": HUNG if is_hung else OK, "processes": shown}
        return respond(reply, 503) if is_hung else respond(reply)

    async def ready(request: Request) -> Response:
        visit = visit_of(request)
        reasons = tuple(visit.session.cluster.health())
        if node is not None and node.is_meant(request.scope):
            reasons = await node.reasons(reasons)
        # They name brokers, which is nothing for unknown clients.
        shown = () if visit.is_unknown else reasons
        state = Readiness(ready=not reasons, reasons=shown)
        if state.ready:
            return respond(state)
        return respond(state, 503, {"retry-after": str(RETRY_SECONDS)})

    return [Route("/healthz", alive, methods=["GET"]), Route("/readyz", ready, methods=["GET"])]
