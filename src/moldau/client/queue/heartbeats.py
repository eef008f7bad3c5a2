"""Heartbeats of one consumer: a stream to any live broker, which returns assignments.

If the broker fails, another one is used. An eviction ends the heartbeats.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from grpc import aio

from moldau.client.queue.channels import HEARTBEAT
from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    failure_of,
    stream_failure,
    timed_out_failure,
)
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

_RESPONSE_SECONDS_MAX: Final = 5.0
_PAUSE_SECONDS: Final = 0.2
_INTERVAL_SECONDS_MIN: Final = 0.05


class Heartbeats:
    """Sends heartbeats until it is closed, or the consumer is evicted."""

    def __init__(
        self,
        rpc: RpcClient,
        *,
        interval_seconds: float,
        build_request: Callable[[], pb.HeartbeatRequest],
        on_assignment: Callable[[pb.Assignment], None],
        on_evicted: Callable[[RpcFailure], None],
    ) -> None:
        self._rpc = rpc
        self._interval_seconds = interval_seconds
        self._build_request = build_request
        self._on_assignment = on_assignment
        self._on_evicted = on_evicted
        self._soon = asyncio.Event()
        self._turn = 0
        self._task = asyncio.create_task(self._run(), name="queue-heartbeats")

    def send_now(self) -> None:
        """Send the next heartbeat now."""
        self._soon.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            candidates = self._rpc.resolver.candidates
            if not candidates:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            address = candidates[self._turn % len(candidates)]
            failure = await self._stream(address)
            if failure.is_evicted or not failure.is_retriable:
                self._on_evicted(failure)
                return
            log.info("heartbeat failed: %s; trying another broker", failure)
            self._turn += 1
            self._rpc.resolver.refresh_soon()
            # Not longer than between two heartbeats: the consumer would be evicted.
            pause = min(failure.retry_seconds, self._interval_seconds)
            await asyncio.sleep(max(_PAUSE_SECONDS, pause))

    async def _stream(self, address: str) -> RpcFailure:
        """Send heartbeats to one broker until that fails."""
        call = self._rpc.channels.stream(address, HEARTBEAT)
        try:
            while True:
                self._soon.clear()
                await call.write(self._build_request())
                # Not wait_for: in Python 3.11 it may lose a cancellation.
                async with asyncio.timeout(_RESPONSE_SECONDS_MAX):
                    response = await call.read()
                if not isinstance(response, pb.HeartbeatResponse):
                    return await stream_failure(call, address)
                self._handle(response)
                await self._pause()
        except aio.AioRpcError as error:
            return failure_of(error, address)
        except asyncio.InvalidStateError:
            # The stream has already ended.
            return await stream_failure(call, address)
        except TimeoutError:
            return timed_out_failure(address, "heartbeat timed out")
        finally:
            call.cancel()

    def _handle(self, response: pb.HeartbeatResponse) -> None:
        if response.heartbeat_interval_ms > 0:
            self._interval_seconds = response.heartbeat_interval_ms / 1000
        if response.HasField("assignment"):
            self._on_assignment(response.assignment)

    async def _pause(self) -> None:
        seconds = max(_INTERVAL_SECONDS_MIN, self._interval_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._soon.wait()
