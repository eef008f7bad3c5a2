"""GET /api/v1/me: who the client is, and what it may do."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Entrance
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import visit_of
from moldau.security.acl import CLUSTER_NAME, ON_CLUSTER, ResourceType
from moldau.security.principal import ANONYMOUS


class Me(Struct, frozen=True, kw_only=True):
    user: str
    """Empty for a client that did not say who it is."""
    has_login: bool
    """Whether the listener knows users."""
    read_only: bool
    """Whether the listener refuses every change."""
    authorizes: bool
    """Whether users have different rights; else everyone may do everything."""
    cluster: list[str]
    """What the user may do to the cluster, by Kafka's names."""
    expires_at_ms: int | None
    """When the proof ends, as a token or a certificate; null: never."""
    play: bool
    """Whether the cluster was started to be played with: see `play`."""


def routes(entrance: Entrance) -> list[Route]:
    async def me(request: Request) -> Response:
        check_query(request)
        visit = visit_of(request)
        session = visit.session
        allowed = session.operations(ResourceType.CLUSTER, CLUSTER_NAME, ON_CLUSTER)
        return respond(
            Me(
                user="" if session.principal == ANONYMOUS else session.principal.name,
                has_login=entrance.asks,
                read_only=session.read_only,
                authorizes=entrance.sessions.authorizes,
                cluster=[operation.name for operation in allowed],
                expires_at_ms=visit.expires_at_ms,
                play=session.play.is_offered(),
            )
        )

    return [Route("/api/v1/me", me, methods=["GET"])]
