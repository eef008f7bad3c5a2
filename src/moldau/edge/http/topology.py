"""/api/v1/topology: brokers, topics and partition leaders, as this broker knows them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.broker import Broker
from moldau.edge.http.responses import check_query, respond
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import Topology


def routes(broker: Broker) -> list[Route]:
    async def topology(request: Request) -> Response:
        check_query(request, "topic")
        names = request.query_params.getlist("topic")
        found = broker.cluster.topology()
        return respond(_only(found, names) if names else found)

    return [Route("/api/v1/topology", topology, methods=["GET"])]


def _only(topology: Topology, names: list[str]) -> Topology:
    by_name = {topic.name: topic for topic in topology.topics}
    for name in names:
        if name not in by_name:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist"
            )
    return msgspec.structs.replace(
        topology, topics=tuple(by_name[name] for name in dict.fromkeys(names))
    )
