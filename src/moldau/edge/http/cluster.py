"""Owns /api/v1/cluster: brokers that come, go, and stay after all."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.answers import answer, check_query, read_body
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import BrokerChanged, BrokerNamed, JoinRequest
from moldau.service.broker import Broker

ANSWER_SECONDS_MAX: Final = 4.0
"""Below the five seconds that a joining broker waits, so that it hears what the trouble is."""

_join_request: Final = msgspec.json.Decoder(JoinRequest)
_broker_named: Final = msgspec.json.Decoder(BrokerNamed)

T = TypeVar("T")


class Decisions:
    """Waits for the cluster to decide, but not for ever.

    What was asked goes on when nobody waits any more: a change of the metadata that is cancelled
    half-way would let the next one be decided before it is known whether this one holds. It ends
    by the service's own limit.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: set[asyncio.Task[Any]] = set()

    async def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises RefusedError, also to say that it takes too long."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS_MAX)
        if done:
            return task.result()
        reasons = self._broker.cluster.health()
        raise RefusedError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"not decided within {ANSWER_SECONDS_MAX:g} s, but it may be yet"
            + "".join(f"; {reason}" for reason in reasons),
        )

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Looked at, so that a refusal nobody waited for is not reported as lost.
            task.exception()


def routes(broker: Broker) -> list[Route]:
    decisions = Decisions(broker)

    async def join(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _join_request)
        return answer(await decisions.result(broker.cluster.join(wanted)))

    async def leave(request: Request) -> Response:
        """Accepted, not done: the replicas move away in the background."""
        check_query(request)
        named = await read_body(request, _broker_named)
        await decisions.result(broker.cluster.drain(named.broker))
        return answer(BrokerChanged(broker=named.broker, state="draining"), status=202)

    async def keep(request: Request) -> Response:
        check_query(request)
        named = await read_body(request, _broker_named)
        await decisions.result(broker.cluster.keep(named.broker))
        return answer(BrokerChanged(broker=named.broker, state="active"))

    return [
        Route("/api/v1/cluster/join", join, methods=["POST"]),
        Route("/api/v1/cluster/leave", leave, methods=["POST"]),
        Route("/api/v1/cluster/keep", keep, methods=["POST"]),
    ]
