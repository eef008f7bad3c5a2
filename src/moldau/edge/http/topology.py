"""/api/v1/topology: brokers, topics and partition leaders, as this broker knows them."""

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.broker import Broker
from moldau.api.lookup import select_topics
from moldau.edge.http.responses import check_query, respond


def routes(broker: Broker) -> list[Route]:
    async def topology(request: Request) -> Response:
        check_query(request, "topic")
        names = request.query_params.getlist("topic")
        found = broker.cluster.topology()
        if names:
            found = replace(found, topics=select_topics(found, names))
        return respond(found)

    return [Route("/api/v1/topology", topology, methods=["GET"])]
