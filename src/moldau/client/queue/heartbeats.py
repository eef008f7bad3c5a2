"""Owns the heartbeats of one consumer: a stream to any broker that is alive, and its assignments.

A broker that is gone is replaced by another one. Who is evicted stops, and says so.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import grpc
from grpc import aio

from moldau.client.queue.channels import HEARTBEAT
from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

_ANSWER_SECONDS_MAX: Final = 5.0
_PAUSE_SECONDS: Final = 0.2
_INTERVAL_SECONDS_MIN: Final = 0.05


class Heartbeats:
    """Beats until it is closed, or the consumer is evicted."""

    def __init__(
        self,
        caller: RpcClient,
        *,
        interval_seconds: float,
        beat: Callable[[], pb.HeartbeatRequest],
        on_assignment: Callable[[pb.Assignment], None],
        on_evicted: Callable[[RpcFailure], None],
    ) -> None:
        self._caller = caller
        self._interval_seconds = interval_seconds
        self._beat = beat
        self._on_assignment = on_assignment
        self._on_evicted = on_evicted
        self._soon = asyncio.Event()
        self._turn = 0
        self._task = asyncio.create_task(self._run(), name="queue-heartbeats")

    def hurry(self) -> None:
        """Say now what has changed."""
        self._soon.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            candidates = self._caller.resolver.candidates
            if not candidates:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            address = candidates[self._turn % len(candidates)]
            failure = await self._stream(address)
            if failure.is_evicted or not failure.may_repeat:
                self._on_evicted(failure)
                return
            log.info("heartbeats go to another broker: %s", failure)
            self._turn += 1
            self._caller.resolver.suspect()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _stream(self, address: str) -> RpcFailure:
        """Beat there for as long as it lasts."""
        call = self._caller.channels.stream(address, HEARTBEAT)
        try:
            while True:
                self._soon.clear()
                await call.write(self._beat())
                # Not wait_for: in 3.11 it may lose a cancellation.
                async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                    answer = await call.read()
                if not isinstance(answer, pb.HeartbeatResponse):
                    return await _ended(call, address)
                self._heard(answer)
                await self._rest()
        except aio.AioRpcError as error:
            return failure_of(error, address)
        except asyncio.InvalidStateError:
            # Written to a stream that has ended.
            return await _ended(call, address)
        except TimeoutError:
            late = grpc.StatusCode.DEADLINE_EXCEEDED
            return RpcFailure(address, late, "", "no answer to a heartbeat", "", True)
        finally:
            call.cancel()

    def _heard(self, answer: pb.HeartbeatResponse) -> None:
        if answer.heartbeat_interval_ms > 0:
            self._interval_seconds = answer.heartbeat_interval_ms / 1000
        if answer.HasField("assignment"):
            self._on_assignment(answer.assignment)

    async def _rest(self) -> None:
        seconds = max(_INTERVAL_SECONDS_MIN, self._interval_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._soon.wait()


async def _ended(
    call: "aio.StreamStreamCall[pb.HeartbeatRequest, pb.HeartbeatResponse]", address: str
) -> RpcFailure:
    """The broker ended the stream; it may say why."""
    status = await call.code()
    trailers = await call.trailing_metadata() or aio.Metadata()
    details = await call.details() or "the stream of heartbeats ended"
    if status is grpc.StatusCode.OK:
        status = grpc.StatusCode.UNAVAILABLE
    return failure_of(aio.AioRpcError(status, aio.Metadata(), trailers, details=details), address)
