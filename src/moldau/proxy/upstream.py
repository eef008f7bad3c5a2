"""A stream from the proxy to a broker, with one response per request, in order."""

import asyncio
import time
from collections import deque

import grpc
from grpc import aio

from moldau.client.queue.rpc_failures import (
    REASON_NUMBERS,
    RpcFailure,
    failure_of,
    timed_out_failure,
)
from moldau.proto.v1 import queue_pb2 as pb


class Upstream:
    """A stream and the futures of its responses."""

    def __init__(self, call: "aio.StreamStreamCall[bytes, bytes]", address: str) -> None:
        self._call = call
        self.address = address
        self._waiting: deque[asyncio.Future[bytes | RpcFailure]] = deque()
        self._lock = asyncio.Lock()
        self._failure: RpcFailure | None = None
        self._waits_until = 0.0
        self._has_response = False
        self._reading = asyncio.create_task(self._read(), name="proxy-upstream")

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    @property
    def has_to_wait(self) -> bool:
        """Whether the client is over its quota: another stream would be refused, too."""
        return time.monotonic() < self._waits_until

    async def request(self, data: bytes, seconds_max: float) -> bytes | RpcFailure:
        """The response to a request, or its failure. A timeout breaks the stream: later responses
        could not be matched."""
        future: asyncio.Future[bytes | RpcFailure] = asyncio.get_running_loop().create_future()
        async with self._lock:
            if self._failure is not None:
                return self._failure
            self._waiting.append(future)
            try:
                await self._call.write(data)
            except (aio.AioRpcError, asyncio.InvalidStateError):
                # The reader sets the failure for all waiters.
                await asyncio.wait([self._reading])
            if not self._has_response:
                # The broker may refuse the stream, and gRPC hides why from who still writes.
                await asyncio.wait([future], timeout=seconds_max)
                if not future.done():
                    self._break(timed_out_failure(self.address))
        try:
            async with asyncio.timeout(seconds_max):
                return await future
        except TimeoutError:
            failure = timed_out_failure(self.address)
            self._break(failure)
            return failure

    async def close(self) -> None:
        self._call.cancel()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._has_response = True
                if self._waiting:
                    future = self._waiting.popleft()
                    if not future.done():
                        future.set_result(response)
            error = aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                aio.Metadata(),
                aio.Metadata(),
                details="the stream ended",
            )
        except aio.AioRpcError as raised:
            error = raised
        self._break(failure_of(error, self.address))

    def _break(self, failure: RpcFailure) -> None:
        if self._failure is None:
            self._failure = failure
            self._waits_until = time.monotonic() + failure.retry_seconds
            self._call.cancel()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._failure)


def failed_batch(failure: RpcFailure, count: int) -> pb.SendBatchResponse:
    """The response to a request without a response from a broker."""
    response = pb.SendBatchResponse(partitions=[-1] * count, offsets=[-1] * count)
    reason = REASON_NUMBERS.get(
        failure.reason, pb.UNAVAILABLE if failure.is_retriable else pb.INTERNAL
    )
    response.failures.add(
        indexes=range(count),
        reason=reason,
        message=str(failure),
        is_uncertain=failure.is_uncertain,
    )
    return response
