"""/api/v1/cluster/join: brokers join and return. /api/v1/cluster/tokens: what lets them join."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.broker import Broker
from moldau.api.metadata_changes import MetadataChanges
from moldau.edge.http.responses import check_query, read_body, respond
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
_NO_STORE: Final = {"cache-control": "no-store"}


def routes(broker: Broker) -> list[Route]:
    changes = MetadataChanges(broker)

    async def challenge(request: Request) -> Response:
        check_query(request)
        return respond(broker.joins.challenge(), headers=_NO_STORE)

    async def join(request: Request) -> Response:
        """The request proves that it may be made: it needs no user."""
        check_query(request)
        proven = await read_body(request, _proven)
        return respond(await changes.result(broker.joins.join(proven)), headers=_NO_STORE)

    async def create_token(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _wanted)
        work = broker.security.create_join_token(wanted.lifetime_ms)
        text, token = await changes.result(work)
        created = JoinTokenCreated(id=token.id, token=text, expires_ms=token.expires_ms)
        return respond(created, status=201, headers=_NO_STORE)

    async def list_tokens(request: Request) -> Response:
        check_query(request)
        tokens = sorted(broker.security.join_tokens(), key=lambda token: token.expires_ms)
        shown = tuple(
            JoinTokenShown(id=one.id, expires_ms=one.expires_ms, used=one.used_by is not None)
            for one in tokens
        )
        return respond(JoinTokenList(tokens=shown))

    async def delete_token(request: Request) -> Response:
        check_query(request)
        token_id = request.path_params["token"]
        await changes.result(broker.security.delete_join_token(token_id))
        return respond(TokenDeleted(id=token_id))

    return [
        Route("/api/v1/cluster/join/challenge", challenge, methods=["GET"]),
        Route("/api/v1/cluster/join", join, methods=["POST"]),
        Route("/api/v1/cluster/tokens", create_token, methods=["POST"]),
        Route("/api/v1/cluster/tokens", list_tokens, methods=["GET"]),
        Route("/api/v1/cluster/tokens/{token}", delete_token, methods=["DELETE"]),
    ]
