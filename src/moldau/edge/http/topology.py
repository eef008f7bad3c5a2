"""/api/v1/topology: brokers, topics and partition leaders, as this broker knows them."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of


def routes() -> list[Route]:
    async def topology(request: Request) -> Response:
        check_query(request, "topic")
        names = request.query_params.getlist("topic")
        return respond(session_of(request).cluster.topology(names or None))

    return [Route("/api/v1/topology", topology, methods=["GET"])]
