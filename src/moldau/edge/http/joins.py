"""/api/v1/cluster/join: brokers join and return. /api/v1/cluster/tokens: what lets them join."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.methods import by_method
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.topology import (
    JoinTokenCreated,
    JoinTokenList,
    JoinTokenShown,
    JoinTokenWanted,
    ProvenJoinRequest,
    TokenDeleted,
)

_proven: Final = msgspec.json.Decoder(ProvenJoinRequest).decode
_wanted: Final = msgspec.json.Decoder(JoinTokenWanted).decode


def routes() -> list[Route]:
    async def challenge(request: Request) -> Response:
        check_query(request)
        return respond(session_of(request).cluster.join_challenge())

    async def join(request: Request) -> Response:
        """The request proves that it may be made: it needs no user."""
        check_query(request)
        proven = await read_body(request, _proven)
        session = session_of(request)
        return respond(await session.decided(session.cluster.join_proven(proven)))

    async def create_token(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _wanted)
        session = session_of(request)
        work = session.security.create_join_token(wanted.lifetime_ms)
        text, token = await session.decided(work)
        created = JoinTokenCreated(id=token.id, token=text, expires_ms=token.expires_ms)
        return respond(created, status=201)

    async def list_tokens(request: Request) -> Response:
        check_query(request)
        found = session_of(request).security.join_tokens()
        tokens = sorted(found, key=lambda token: token.expires_ms)
        shown = tuple(
            JoinTokenShown(id=one.id, expires_ms=one.expires_ms, used=one.used_by is not None)
            for one in tokens
        )
        return respond(JoinTokenList(tokens=shown))

    async def delete_token(request: Request) -> Response:
        check_query(request)
        token_id = request.path_params["token"]
        session = session_of(request)
        await session.decided(session.security.delete_join_token(token_id))
        return respond(TokenDeleted(id=token_id))

    return [
        Route("/api/v1/cluster/join/challenge", challenge, methods=["GET"]),
        Route("/api/v1/cluster/join", join, methods=["POST"]),
        by_method("/api/v1/cluster/tokens", GET=list_tokens, POST=create_token),
        Route("/api/v1/cluster/tokens/{token}", delete_token, methods=["DELETE"]),
    ]
