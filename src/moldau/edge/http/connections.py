"""GET /api/v1/brokers/{broker}/connections: the clients of a broker, by its connections."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.query_parameters import parse_int
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError


def routes() -> list[Route]:
    async def connections(request: Request) -> Response:
        check_query(request)
        text = request.path_params["broker"]
        broker = parse_int(text)
        if broker is None:
            raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {text}")
        return respond(await session_of(request).cluster.connections(broker))

    return [Route("/api/v1/brokers/{broker}/connections", connections, methods=["GET"])]
