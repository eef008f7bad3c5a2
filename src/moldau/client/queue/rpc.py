"""Owns one request of a client: whom to ask, how often to try, and when to give up.

What can be repeated without harm is tried until `seconds_max`, at one broker after the other. What
cannot (a send) is repeated only if it is known that nothing was done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from grpc import aio

from moldau.client.errors import ClientError
from moldau.client.queue.channels import Channels, Message, Method
from moldau.client.queue.cluster_view import ClusterView
from moldau.client.queue.resolver import Resolver
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    error_of,
    failure_of,
    retries_exhausted_error,
)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")

PAUSE_SECONDS: Final = 0.02
PAUSE_SECONDS_MAX: Final = 0.5
TRIES_PER_TIMEOUT: Final = 3
"""A broker that hangs must leave time for another one."""


class CallFailed(Exception):
    """A call that failed for good: its last failure, and those of all addresses."""

    def __init__(
        self, failure: RpcFailure, failures: dict[str, RpcFailure], seconds: float
    ) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.failures = failures
        self.seconds = seconds

    @property
    def ran_out_of_time(self) -> bool:
        return self.failure.may_repeat

    def error(self, doing: str) -> ClientError:
        """What the user is told."""
        if self.ran_out_of_time:
            return retries_exhausted_error(self.failures, doing, self.seconds)
        return error_of(self.failure, doing)


Route = Callable[[ClusterView], list[str]]
"""Where a request belongs, the best first. Empty: wherever somebody is."""


def any_broker(view: ClusterView) -> list[str]:
    """Any broker answers."""
    return []


class RpcClient:
    """Calls of one client."""

    def __init__(self, channels: Channels, resolver: Resolver, *, seconds_max: float) -> None:
        self.channels = channels
        self.resolver = resolver
        self.seconds_max = seconds_max

    @property
    def view(self) -> ClusterView:
        return self.resolver.view

    async def ask(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        doing: str,
        route: Route = any_broker,
        seconds_max: float | None = None,
        repeats: bool = True,
    ) -> A:
        """The answer, whoever gives it. Raises ClientError; `doing` is what could not be done."""
        try:
            return await self.call(
                method, request, route=route, seconds_max=seconds_max, repeats=repeats
            )
        except CallFailed as failed:
            raise failed.error(doing) from failed.__cause__

    async def call(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        route: Route = any_broker,
        seconds_max: float | None = None,
        repeats: bool = True,
    ) -> A:
        """The same; raises CallFailed."""

        async def once(address: str, seconds: float) -> A:
            return await self.channels.call(address, method, request, seconds_max=seconds)

        return await self.patiently(once, route=route, seconds_max=seconds_max, repeats=repeats)

    async def patiently(
        self,
        once: Callable[[str, float], Awaitable[T]],
        *,
        route: Route = any_broker,
        seconds_max: float | None = None,
        repeats: bool = True,
    ) -> T:
        """Try `once(address, seconds)` until it succeeds. Raises CallFailed."""
        seconds = self.seconds_max if seconds_max is None else seconds_max
        deadline = time.monotonic() + seconds
        failures: dict[str, RpcFailure] = {}
        pause = PAUSE_SECONDS
        while True:
            addresses = route(self.view) or self.resolver.candidates
            if not addresses:
                await self._find_somebody(deadline, seconds)
            for address in addresses:
                left = max(0.001, deadline - time.monotonic())
                limit = max(1.0, seconds / TRIES_PER_TIMEOUT) if repeats else left
                try:
                    return await once(address, min(left, limit))
                except aio.AioRpcError as error:
                    failure = failures[address] = failure_of(error, address)
                    is_final = not failure.may_repeat or (failure.is_uncertain and not repeats)
                    if is_final or time.monotonic() >= deadline:
                        raise CallFailed(failure, failures, seconds) from error
                if failure.is_misrouted:
                    await self.resolver.refresh()
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def everywhere(
        self, method: Method[Q, A], request: Q, *, route: Route, seconds_max: float | None = None
    ) -> list[A]:
        """The answers of all that `route` names, or that are alive if it names none.

        All or none: a part would look like the whole. Raises CallFailed.
        """
        seconds = self.seconds_max if seconds_max is None else seconds_max
        deadline = time.monotonic() + seconds
        failures: dict[str, RpcFailure] = {}
        pause = PAUSE_SECONDS
        while True:
            limit = max(0.001, min(deadline - time.monotonic(), max(1.0, seconds / 3)))
            addresses = route(self.view) or self.resolver.candidates
            if not addresses:
                await self._find_somebody(deadline, seconds)
            found = await asyncio.gather(
                *(self._attempt(each, method, request, limit) for each in addresses)
            )
            answers = [each for each in found if not isinstance(each, RpcFailure)]
            if len(answers) == len(found) and answers:
                return answers
            for failure in (each for each in found if isinstance(each, RpcFailure)):
                failures[failure.address] = failure
                if not failure.may_repeat or time.monotonic() >= deadline:
                    raise CallFailed(failure, failures, seconds)
            await self.resolver.refresh()
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def _find_somebody(self, deadline: float, seconds: float) -> None:
        """No broker is known yet, as behind an HTTP address that was silent so far."""
        await self.resolver.refresh()
        failures = self.resolver.failures
        if time.monotonic() >= deadline and not self.resolver.candidates and failures:
            raise CallFailed(next(iter(failures.values())), failures, seconds)

    async def _attempt(
        self, address: str, method: Method[Q, A], request: Q, seconds: float
    ) -> A | RpcFailure:
        try:
            return await self.channels.call(address, method, request, seconds_max=seconds)
        except aio.AioRpcError as error:
            return failure_of(error, address)
