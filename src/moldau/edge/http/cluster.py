"""/api/v1/cluster: drain a broker, or cancel its draining; recover from lost brokers."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.topology import BrokerActionRequest, BrokerActionResponse, RecoveryRequest

_broker_named: Final = msgspec.json.Decoder(BrokerActionRequest)
_recovery: Final = msgspec.json.Decoder(RecoveryRequest)


def routes() -> list[Route]:

    async def leave(request: Request) -> Response:
        """202: the replicas move to other brokers in the background."""
        check_query(request)
        named = await read_body(request, _broker_named.decode)
        session = session_of(request)
        await session.decided(session.cluster.drain(named.broker))
        return respond(BrokerActionResponse(broker=named.broker, state="draining"), status=202)

    async def keep(request: Request) -> Response:
        check_query(request)
        named = await read_body(request, _broker_named.decode)
        session = session_of(request)
        await session.decided(session.cluster.keep(named.broker))
        return respond(BrokerActionResponse(broker=named.broker, state="active"))

    async def recover(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _recovery.decode)
        session = session_of(request)
        parts = wanted.partitions
        named = None if parts is None else [(part.topic, part.partition) for part in parts]
        # Without the deadline of other changes: it asks every broker, partition by partition.
        done = await session.cluster.recover(wanted.lost, named, dry_run=wanted.dry_run)
        return respond(done)

    return [
        Route("/api/v1/cluster/recover", recover, methods=["POST"]),
        Route("/api/v1/cluster/leave", leave, methods=["POST"]),
        Route("/api/v1/cluster/keep", keep, methods=["POST"]),
    ]
