"""/api/v1/cluster: drain a broker, or cancel its draining; recover from lost brokers; let the
preferred replicas lead."""

from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.types import ElectionType
from moldau.edge.concurrent_work import run_each
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode
from moldau.model.topology import BrokerActionRequest, BrokerActionResponse, RecoveryRequest

_broker_named: Final = msgspec.json.Decoder(BrokerActionRequest)
_recovery: Final = msgspec.json.Decoder(RecoveryRequest)
_ELECTIONS_MS_MAX: Final = 10_000
_REFUSALS_MAX: Final = 100


class NotElected(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: str
    detail: str


class LeadersElected(Struct, frozen=True, kw_only=True):
    elected: int
    """Partitions that their preferred replica leads now."""
    failed: int
    refused: list[NotElected]
    """The first 100 of those that failed."""


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

    async def elect(request: Request) -> Response:
        """Of all partitions that another replica leads than the preferred one."""
        check_query(request)
        cluster = session_of(request).cluster
        due = list(cluster.elections_due())
        errors = await run_each(
            lambda each: cluster.elect(*each, ElectionType.PREFERRED), due, _ELECTIONS_MS_MAX
        )
        refused = [
            NotElected(topic=topic, partition=index, error=error.code.name, detail=str(error))
            for (topic, index), error in zip(due, errors, strict=True)
            # The preferred replica leads.
            if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        elected, failed = len(due) - len(refused), len(refused)
        return respond(
            LeadersElected(elected=elected, failed=failed, refused=refused[:_REFUSALS_MAX])
        )

    return [
        Route("/api/v1/cluster/elect", elect, methods=["POST"]),
        Route("/api/v1/cluster/recover", recover, methods=["POST"]),
        Route("/api/v1/cluster/leave", leave, methods=["POST"]),
        Route("/api/v1/cluster/keep", keep, methods=["POST"]),
    ]
