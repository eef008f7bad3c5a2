"""Owns one stream from the proxy to a broker, on which every request has one answer, in order."""

import asyncio
from collections import deque
from typing import Final

import grpc
from grpc import aio

from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.proto.v1 import queue_pb2 as pb

_REASONS: Final[dict[str, int]] = dict(pb.Reason.items())


class Upstream:
    """A stream, and who waits for its answers."""

    def __init__(self, call: "aio.StreamStreamCall[bytes, bytes]", address: str) -> None:
        self._call = call
        self.address = address
        self._waiting: deque[asyncio.Future[bytes | RpcFailure]] = deque()
        self._lock = asyncio.Lock()
        self._failure: RpcFailure | None = None
        self._reading = asyncio.create_task(self._read(), name="proxy-upstream")

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    async def ask(self, data: bytes, seconds_max: float) -> bytes | RpcFailure:
        """The answer to a request, or why there is none. One that is late breaks the stream: what
        comes after it could not be told apart."""
        future: asyncio.Future[bytes | RpcFailure] = asyncio.get_running_loop().create_future()
        async with self._lock:
            if self._failure is not None:
                return self._failure
            self._waiting.append(future)
            try:
                await self._call.write(data)
            except (aio.AioRpcError, asyncio.InvalidStateError):
                # The reader says why, to all who wait.
                await asyncio.wait([self._reading])
        try:
            async with asyncio.timeout(seconds_max):
                return await future
        except TimeoutError:
            late = grpc.StatusCode.DEADLINE_EXCEEDED
            failure = RpcFailure(self.address, late, "", "no answer in time", "", True)
            self._break(failure)
            return failure

    async def close(self) -> None:
        self._call.cancel()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            async for answer in self._call:
                if self._waiting:
                    future = self._waiting.popleft()
                    if not future.done():
                        future.set_result(answer)
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
            self._call.cancel()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._failure)


def failed_batch(failure: RpcFailure, count: int) -> pb.SendBatchResponse:
    """The answer to a request that no broker answered."""
    answer = pb.SendBatchResponse(partitions=[-1] * count, offsets=[-1] * count)
    reason = _REASONS.get(failure.reason, pb.UNAVAILABLE if failure.may_repeat else pb.INTERNAL)
    answer.failures.add(
        indexes=range(count),
        reason=reason,
        message=str(failure),
        is_uncertain=failure.is_uncertain,
    )
    return answer
