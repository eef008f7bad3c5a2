"""Polls for one consumer, from all brokers that lead its partitions. No delivery is lost.

A broker counts a delivery when it leases messages, so its response must reach the consumer. First
the brokers are polled in turn without waiting, each time starting with another one; the first with
messages wins. If none has any, all of them are polled with a wait, each for its share. Messages
that arrive after the poll has returned are kept for the next one, or given back if none follows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from grpc import aio

from moldau.client.queue.channels import POLL
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.model.delivery_tokens import TokenKind
from moldau.proto.v1 import queue_pb2 as pb

WAIT_SECONDS_MAX: Final = 5.0
"""Of one request, because leaders change."""
KEEP_SECONDS_MAX: Final = 1.0
"""How long late messages are kept for the next poll before they are given back."""
_CALL_SECONDS_MAX: Final = 10.0
"""Added to the wait."""
_QUICK_SECONDS_MAX: Final = 1.0
_FULL_SECONDS: Final = 0.05
_DOWN_SECONDS: Final = 0.1

GiveBack = Callable[[list[bytes]], Coroutine[Any, Any, object]]
Targets = Callable[[], list[str]]
Only = Callable[[str], Sequence[pb.TopicPartitions]]
"""The partitions to poll at an address. Empty: all assigned ones that it leads."""


class Polled(NamedTuple):
    """`is_full`: there are more messages, but acks must make room first."""

    messages: list[pb.Message]
    is_full: bool


class _Arrived(NamedTuple):
    message: pb.Message
    at: float


class Poller:
    """Polls for one consumer."""

    def __init__(
        self,
        rpc: RpcClient,
        group: str,
        consumer: str,
        *,
        targets: Targets,
        give_back: GiveBack,
        only: Only = lambda address: (),
    ) -> None:
        self._rpc = rpc
        self._group = group
        self._consumer = consumer
        self._targets = targets
        self._give_back = give_back
        self._only = only
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._returns: set[asyncio.Task[object]] = set()
        self._arrived: deque[_Arrived] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._wanted = 0
        self._turn = 0
        self._paused_until: dict[str, float] = {}
        self._full: set[str] = set()
        self._fatal: CallFailed | None = None
        self._give_back_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.failures: dict[str, RpcFailure] = {}
        """By address, if its last request failed."""
        self.responded_at = time.monotonic()
        """When a broker last responded."""

    @property
    def is_idle(self) -> bool:
        return not (self._wanted or self._requests or self._arrived or self._returns)

    async def poll(
        self,
        count_max: int,
        wait_seconds: float,
        *,
        visibility_ms: int = 0,
    ) -> Polled:
        """Up to `count_max` messages, as soon as there are any. Raises CallFailed if the failure is
        not retriable."""
        deadline = time.monotonic() + wait_seconds
        self._full.clear()
        self._wanted += count_max
        try:
            await self._sweep(visibility_ms, deadline)
            await self._wait(visibility_ms, deadline)
            # Not if we are cancelled: then they are for the next poll.
            messages = self._take(count_max)
        finally:
            self._wanted -= count_max
            self._keep_for_next_poll()
        if not messages and self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal
        return Polled(messages, bool(self._full) and not messages)

    def outage(self) -> dict[str, RpcFailure]:
        """The failures by address if no broker responds; empty if one does, or wants the client to
        wait."""
        targets = self._targets() or list(self._rpc.resolver.failures)
        known = {**self._rpc.resolver.failures, **self.failures}
        failed = {
            each: known[each] for each in targets if each in known and not known[each].retry_seconds
        }
        return failed if len(failed) == len(targets) else {}

    async def close(self) -> None:
        """Cancel all requests, and give back unfetched messages."""
        self._closed = True
        if self._give_back_timer is not None:
            self._give_back_timer.cancel()
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests)
        self._wake()
        self._drop_ordered()
        self._give_back_all()
        if self._returns:
            await asyncio.wait(set(self._returns), timeout=_CALL_SECONDS_MAX)

    # ---- the two phases

    async def _sweep(self, visibility_ms: int, deadline: float) -> None:
        """Poll one broker after the other without waiting."""
        targets = [] if self._closed else self._targets()
        if len(targets) == 1 and deadline > time.monotonic():
            # The only broker can wait at once.
            return
        self._turn += 1
        start = self._turn % len(targets) if targets else 0
        for address in targets[start:] + targets[:start]:
            if self._is_settled:
                return
            if address not in self._requests and not self._is_paused(address):
                self._start(address, visibility_ms, self._wanted, 0.0)
            request = self._requests.get(address)
            # A broker that already waits, from an earlier poll, has no messages.
            if request is not None and request.get_name() == _QUICK:
                # A broker that hangs must not block the others; its response is not lost.
                limit = _QUICK_SECONDS_MAX if len(targets) > 1 else _CALL_SECONDS_MAX
                await asyncio.wait([request], timeout=limit)

    async def _wait(self, visibility_ms: int, deadline: float) -> None:
        """Poll all with a wait, until one has messages or the deadline has passed."""
        while not self._is_settled:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed:
                return
            targets = self._targets()
            share = -(-self._wanted // max(1, len(targets)))
            for address in targets:
                if address not in self._requests and not self._is_paused(address):
                    self._start(address, visibility_ms, share, min(left, WAIT_SECONDS_MAX))
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=min(left, self._pause_seconds(targets)))
            finally:
                self._waiters.discard(waiter)

    @property
    def _is_settled(self) -> bool:
        return bool(self._arrived) or self._fatal is not None

    # ---- one request

    def _start(self, address: str, visibility_ms: int, count: int, wait: float) -> None:
        request = pb.PollRequest(
            group=self._group,
            consumer_id=self._consumer,
            max_messages=count,
            wait_ms=int(wait * 1000),
            visibility_ms=visibility_ms,
            partitions=self._only(address),
        )
        name = _WAITING if wait else _QUICK
        task = asyncio.create_task(self._request(address, request, wait), name=name)
        self._requests[address] = task
        task.add_done_callback(lambda done: self._ended(address, done))

    async def _request(self, address: str, request: pb.PollRequest, wait: float) -> None:
        seconds = wait + _CALL_SECONDS_MAX
        try:
            response = await self._rpc.channels.call(address, POLL, request, seconds_max=seconds)
        except aio.AioRpcError as error:
            self._failed(failure_of(error, address))
            return
        self.responded_at = time.monotonic()
        self.failures.pop(address, None)
        self._arrived.extend(_Arrived(message, self.responded_at) for message in response.messages)
        if response.is_full and not response.messages:
            self._full.add(address)
            self._paused_until[address] = time.monotonic() + _FULL_SECONDS

    def _failed(self, failure: RpcFailure) -> None:
        self.failures[failure.address] = failure
        if not failure.is_retriable:
            self.responded_at = time.monotonic()
            self._fatal = CallFailed(failure, {failure.address: failure}, 0.0)
            return
        if failure.reason:
            self.responded_at = time.monotonic()
        pause = max(_DOWN_SECONDS, failure.retry_seconds)
        self._paused_until[failure.address] = time.monotonic() + pause
        if failure.is_stale_route:
            self._rpc.resolver.refresh_soon()

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        if self._requests.get(address) is task:
            del self._requests[address]
        if not task.cancelled():
            # Raises errors of this module, which are bugs.
            task.result()
        self._wake()
        if not self._wanted:
            self._keep_for_next_poll()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- paused brokers

    def _is_paused(self, address: str) -> bool:
        return self._paused_until.get(address, 0.0) > time.monotonic()

    def _pause_seconds(self, targets: list[str]) -> float:
        """Until a broker may be polled again; bounded, because there may be new brokers."""
        now = time.monotonic()
        pauses = [self._paused_until[each] - now for each in targets if self._is_paused(each)]
        return max(0.001, min([*pauses, WAIT_SECONDS_MAX if targets else _DOWN_SECONDS]))

    # ---- arrived messages

    def _take(self, count_max: int) -> list[pb.Message]:
        count = min(count_max, len(self._arrived))
        return [self._arrived.popleft().message for _ in range(count)]

    def _keep_for_next_poll(self) -> None:
        if not self._wanted:
            # An ordered group redelivers them: kept ones would come after later messages.
            self._drop_ordered()
        if self._arrived and self._give_back_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            seconds = self._arrived[0].at + KEEP_SECONDS_MAX - time.monotonic()
            self._give_back_timer = loop.call_later(max(0.0, seconds), self._give_back_old)

    def _give_back_old(self) -> None:
        self._give_back_timer = None
        if not self._wanted:
            self._give_back_all(before=time.monotonic() - KEEP_SECONDS_MAX)
            self._keep_for_next_poll()

    def _drop_ordered(self) -> None:
        self._arrived = deque(each for each in self._arrived if not _is_ordered(each.message))

    def _give_back_all(self, *, before: float = inf) -> None:
        tokens = []
        while self._arrived and self._arrived[0].at <= before:
            tokens.append(self._arrived.popleft().message.token)
        if not tokens:
            return
        task = asyncio.create_task(self._give_back(tokens), name="queue-give-back")
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)


def _is_ordered(message: pb.Message) -> bool:
    return message.token[:1] == _ORDERED


_ORDERED: Final = bytes([TokenKind.ORDERED])
_QUICK: Final = "queue-poll"
_WAITING: Final = "queue-poll-waiting"
