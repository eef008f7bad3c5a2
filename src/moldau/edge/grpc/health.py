"""Health checks for load balancers: they need no user, and say only whether calls are served.

Since anyone may send them, they get few of the places for calls: where there are too many, the
oldest one ends. So strangers who watch or say nothing keep neither calls nor other checks out.
Those of grpcio-health-checking have no bound, and a watcher who reads nothing holds a lock that the
others, and the stop of the broker, wait for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import StatusCode
from grpc_health.v1.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse

from moldau.edge.grpc.calls import Calls, RefusedCallError, current_task, reader, write
from moldau.edge.grpc.errors import REPLACED

if TYPE_CHECKING:
    from moldau.edge.grpc.calls import Context, Handler

    Answer = Callable[[HealthCheckRequest, Context], Awaitable[HealthCheckResponse | None]]

HEALTH_SERVICE: Final[str] = DESCRIPTOR.services_by_name["Health"].full_name


class HealthChecks:
    def __init__(self, *, calls_max: int) -> None:
        self._calls_max = calls_max
        self._statuses = {"": HealthCheckResponse.SERVING}
        """By service; the empty name is the whole server."""
        self._changed = asyncio.Event()
        """Set when a status changes, and replaced then."""
        self._under_way: dict[asyncio.Task[Any], None] = {}
        """The oldest one first."""

    def serve(self, service: str) -> None:
        self._statuses[service] = HealthCheckResponse.SERVING
        self._wake()

    def stop(self) -> None:
        """From now on nothing is served."""
        self._statuses = dict.fromkeys(self._statuses, HealthCheckResponse.NOT_SERVING)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def handlers(self, calls: Calls) -> "dict[str, Handler]":
        check, watch = self._bounded(calls, self._check), self._bounded(calls, self._watch)
        read = reader(HealthCheckRequest)
        return {
            "Check": grpc.stream_unary_rpc_method_handler(check, read, write),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, read, write),
        }

    async def _check(
        self, request: HealthCheckRequest, context: "Context"
    ) -> HealthCheckResponse | None:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(StatusCode.NOT_FOUND)
        return HealthCheckResponse(status=status)

    async def _watch(self, request: HealthCheckRequest, context: "Context") -> None:
        shown = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
            if status != shown:
                await context.write(HealthCheckResponse(status=status))
                shown = status
            await changed.wait()

    def _bounded(
        self, calls: Calls, answer: "Answer"
    ) -> "Callable[[object, Context], Awaitable[HealthCheckResponse | None]]":
        async def serve(context: "Context") -> HealthCheckResponse | None:
            this = current_task()
            if len(self._under_way) >= self._calls_max:
                oldest = next(iter(self._under_way))
                del self._under_way[oldest]
                oldest.cancel()
            self._under_way[this] = None
            try:
                return await answer(await calls.request(context, HealthCheckRequest), context)
            except asyncio.CancelledError:
                if this in self._under_way:
                    # Its client has left, or the broker stops.
                    raise
                raise RefusedCallError(REPLACED) from None
            finally:
                self._under_way.pop(this, None)

        return calls.public(serve)
