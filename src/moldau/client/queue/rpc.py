"""Sends one request to the right broker, and retries it until its deadline.

Idempotent requests are retried at one broker after the other. Others (a send) are retried only if
it is certain that nothing was done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message
from grpc import aio

from moldau.client.errors import ClientError
from moldau.client.queue.channels import Channels, Method
from moldau.client.queue.cluster_view import ClusterView
from moldau.client.queue.resolver import Resolver
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    error_of,
    failure_of,
    retries_exhausted_error,
)
from moldau.client.retry import Backoff

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


class CallFailed(Exception):
    """A call that failed for good: its last failure, and the last one of each address."""

    def __init__(
        self, failure: RpcFailure, failures: dict[str, RpcFailure], seconds: float
    ) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.failures = failures
        self.seconds = seconds

    def error(self, doing: str) -> ClientError:
        """The error for the user."""
        if self.failure.is_retriable:
            return retries_exhausted_error(self.failures, doing, self.seconds)
        return error_of(self.failure, doing)


Route = Callable[[ClusterView], list[str]]
"""The addresses for a request, the best first. Empty: any broker."""


def any_broker(view: ClusterView) -> list[str]:
    return []


class RpcClient:
    """The calls of one client."""

    def __init__(self, channels: Channels, resolver: Resolver, *, seconds_max: float) -> None:
        self.channels = channels
        self.resolver = resolver
        self.seconds_max = seconds_max

    def as_caller(self, authorization: str) -> "RpcClient":
        """The same client, for calls with the credentials of another; empty: with none."""
        channels = self.channels.as_caller(authorization)
        return RpcClient(channels, self.resolver, seconds_max=self.seconds_max)

    @property
    def view(self) -> ClusterView:
        return self.resolver.view

    async def request(self, method: Method[Q, A], request: Q, *, doing: str) -> A:
        """The response of any broker. Raises ClientError; `doing` is the failed action."""
        try:
            return await self.call(method, request)
        except CallFailed as failed:
            raise failed.error(doing) from failed.__cause__

    async def call(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        seconds_max: float | None = None,
        idempotent: bool = True,
    ) -> A:
        """As `request`; raises CallFailed."""

        async def attempt(address: str, seconds: float) -> A:
            return await self.channels.call(address, method, request, seconds_max=seconds)

        return await self.retry(attempt, seconds_max=seconds_max, idempotent=idempotent)

    async def retry(
        self,
        attempt: Callable[[str, float], Awaitable[T]],
        *,
        route: Route = any_broker,
        seconds_max: float | None = None,
        idempotent: bool = True,
    ) -> T:
        """Call `attempt(address, seconds)` until it succeeds. Raises CallFailed."""
        backoff = self.backoff(seconds_max)
        failures: dict[str, RpcFailure] = {}
        while True:
            addresses = route(self.view) or self.resolver.candidates
            if not addresses:
                await self._find_broker(backoff)
            waits: list[float] = []
            for address in addresses:
                seconds = backoff.try_seconds if idempotent else max(0.001, backoff.seconds_left)
                try:
                    return await attempt(address, seconds)
                except aio.AioRpcError as error:
                    failure = failures[address] = failure_of(error, address)
                    is_final = not failure.is_retriable or (failure.is_uncertain and not idempotent)
                    if is_final or backoff.is_over:
                        raise CallFailed(failure, failures, backoff.seconds_max) from error
                waits.append(failure.retry_seconds)
                if failure.is_stale_route:
                    await self.resolver.refresh()
            wait = min(waits, default=0.0)
            if wait and wait >= backoff.seconds_left:
                # All of them want to be left alone until after the deadline: say so now.
                seconds = round(backoff.seconds_max - backoff.seconds_left, 1)
                raise CallFailed(failure, failures, seconds)
            await backoff.sleep_async(wait)

    async def call_all(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        route: Route = any_broker,
        seconds_max: float | None = None,
    ) -> list[A]:
        """The responses of all brokers of `route`, or of all that are alive if it is empty.

        All or none: a part would look like the whole. Raises CallFailed.
        """
        backoff = self.backoff(seconds_max)
        failures: dict[str, RpcFailure] = {}
        while True:
            seconds = backoff.try_seconds
            addresses = route(self.view) or self.resolver.candidates
            if not addresses:
                await self._find_broker(backoff)
            found = await asyncio.gather(
                *(self._attempt(each, method, request, seconds) for each in addresses)
            )
            responses = [each for each in found if not isinstance(each, RpcFailure)]
            if len(responses) == len(found) and responses:
                return responses
            failed = [each for each in found if isinstance(each, RpcFailure)]
            for failure in failed:
                failures[failure.address] = failure
                if not failure.is_retriable or backoff.is_over:
                    raise CallFailed(failure, failures, backoff.seconds_max)
            await self.resolver.refresh()
            await backoff.sleep_async(max((each.retry_seconds for each in failed), default=0.0))

    def backoff(self, seconds_max: float | None = None) -> Backoff:
        return Backoff(self.seconds_max if seconds_max is None else seconds_max)

    async def _find_broker(self, backoff: Backoff) -> None:
        """No broker is known yet, e.g. because an HTTP seed has not responded so far."""
        await self.resolver.refresh()
        failures = self.resolver.failures
        if backoff.is_over and not self.resolver.candidates and failures:
            raise CallFailed(next(iter(failures.values())), failures, backoff.seconds_max)

    async def _attempt(
        self, address: str, method: Method[Q, A], request: Q, seconds: float
    ) -> A | RpcFailure:
        try:
            return await self.channels.call(address, method, request, seconds_max=seconds)
        except aio.AioRpcError as error:
            return failure_of(error, address)
