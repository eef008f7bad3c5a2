"""GET /api/v1/raft: the Raft groups of the cluster, in pages."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.query_parameters import page_size, read_text
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of


def routes() -> list[Route]:
    async def groups(request: Request) -> Response:
        check_query(request, "search", "limit", "after")
        search, after = read_text(request, "search"), read_text(request, "after")
        size = page_size(request)
        work = session_of(request).cluster.raft_groups(search or "", after, size)
        return respond(await work)

    return [Route("/api/v1/raft", groups, methods=["GET"])]
