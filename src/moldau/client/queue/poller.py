"""Owns the polls of one consumer: spread over the brokers that have something for it, none lost.

A broker that leases messages counts a delivery, so what it answers must reach the consumer. First
the brokers are asked in turn without waiting, from another one each time; the first that has
something wins. Only if none has, all are asked to wait, each for its share. Whoever answers after
the poll is over has its messages kept for the next poll; if none comes soon, they are given back.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from grpc import aio

from moldau.client.queue.channels import POLL
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.model.delivery_tokens import TokenKind
from moldau.proto.v1 import queue_pb2 as pb

WAIT_SECONDS_MAX: Final = 5.0
"""Of one request. Leaders change: then somebody else is to be asked."""
HOLD_SECONDS_MAX: Final = 1.0
"""How long messages wait for the consumer's next poll before they are given back."""
_CALL_SECONDS_MAX: Final = 10.0
"""On top of the wait."""
_QUICK_SECONDS_MAX: Final = 1.0
_FULL_SECONDS: Final = 0.05
_DOWN_SECONDS: Final = 0.1

GiveBack = Callable[[list[bytes]], Awaitable[object]]
Targets = Callable[[], list[str]]
Only = Callable[[str], Sequence[pb.TopicPartitions]]
"""What to ask an address for. Empty: whatever it leads of what is assigned."""


class Polled(NamedTuple):
    """`is_full`: there is more, but acks must make room first."""

    messages: list[pb.Message]
    is_full: bool


class _Arrived(NamedTuple):
    message: pb.Message
    at: float


class Poller:
    """Polls for one consumer, of which it owns everything that is under way."""

    def __init__(
        self,
        caller: RpcClient,
        group: str,
        consumer: str,
        *,
        targets: Targets,
        give_back: GiveBack,
        only: Only = lambda address: (),
    ) -> None:
        self._caller = caller
        self._group = group
        self._consumer = consumer
        self._targets = targets
        self._give_back = give_back
        self._only = only
        self._asks: dict[str, asyncio.Task[None]] = {}
        self._returns: set[asyncio.Task[None]] = set()
        self._arrived: deque[_Arrived] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._wanted = 0
        self._turn = 0
        self._rest_until: dict[str, float] = {}
        self._full: set[str] = set()
        self._fatal: CallFailed | None = None
        self._releasing: asyncio.TimerHandle | None = None
        self._closed = False
        self.failures: dict[str, RpcFailure] = {}
        """Of addresses whose last answer was none."""
        self.answered_at = time.monotonic()
        """When a broker last answered."""

    @property
    def is_idle(self) -> bool:
        return not (self._wanted or self._asks or self._arrived or self._returns)

    async def poll(
        self,
        count_max: int,
        wait_seconds: float,
        *,
        visibility_ms: int = 0,
    ) -> Polled:
        """Up to `count_max` messages, as soon as there are any. Raises CallFailed where another try
        cannot help; a broker that is not there is not that."""
        deadline = time.monotonic() + wait_seconds
        self._full.clear()
        self._wanted += count_max
        try:
            await self._sweep(visibility_ms, deadline)
            await self._wait(visibility_ms, deadline)
            # Not if we are cancelled: then it is for the next poll.
            messages = self._take(count_max)
        finally:
            self._wanted -= count_max
            self._hold()
        if not messages and self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal
        return Polled(messages, bool(self._full) and not messages)

    def outage(self) -> dict[str, RpcFailure]:
        """Why nobody answers, by address; empty if somebody does."""
        targets = self._targets() or list(self._caller.resolver.failures)
        known = {**self._caller.resolver.failures, **self.failures}
        silent = {each: known[each] for each in targets if each in known}
        return silent if len(silent) == len(targets) else {}

    async def close(self) -> None:
        """Give back what nobody fetched, and ask for nothing more."""
        self._closed = True
        if self._releasing is not None:
            self._releasing.cancel()
        asks = list(self._asks.values())
        for ask in asks:
            ask.cancel()
        if asks:
            await asyncio.wait(asks)
        self._wake()
        self._drop_ordered()
        self._release()
        if self._returns:
            await asyncio.wait(set(self._returns), timeout=_CALL_SECONDS_MAX)

    # ---- the two rounds

    async def _sweep(self, visibility_ms: int, deadline: float) -> None:
        """Ask one after the other what is there now."""
        targets = [] if self._closed else self._targets()
        if len(targets) == 1 and deadline > time.monotonic():
            # It can wait at once: there is nobody else to have a share.
            return
        self._turn += 1
        start = self._turn % len(targets) if targets else 0
        for address in targets[start:] + targets[:start]:
            if self._is_settled:
                return
            if address not in self._asks and not self._rests(address):
                self._ask(address, visibility_ms, self._wanted, 0.0)
            ask = self._asks.get(address)
            # One that waits already, from an earlier poll, has nothing.
            if ask is not None and ask.get_name() == _QUICK:
                # A broker that hangs must not keep us from the others; its answer is not lost.
                limit = _QUICK_SECONDS_MAX if len(targets) > 1 else _CALL_SECONDS_MAX
                await asyncio.wait([ask], timeout=limit)

    async def _wait(self, visibility_ms: int, deadline: float) -> None:
        """Ask all to wait, until one has something or the time is over."""
        while not self._is_settled:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed:
                return
            targets = self._targets()
            share = -(-self._wanted // max(1, len(targets)))
            for address in targets:
                if address not in self._asks and not self._rests(address):
                    self._ask(address, visibility_ms, share, min(left, WAIT_SECONDS_MAX))
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=min(left, self._rest_seconds(targets)))
            finally:
                self._waiters.discard(waiter)

    @property
    def _is_settled(self) -> bool:
        return bool(self._arrived) or self._fatal is not None

    # ---- one request

    def _ask(self, address: str, visibility_ms: int, count: int, wait: float) -> None:
        request = pb.PollRequest(
            group=self._group,
            consumer_id=self._consumer,
            max_messages=count,
            wait_ms=int(wait * 1000),
            visibility_ms=visibility_ms,
            partitions=self._only(address),
        )
        name = _WAITING if wait else _QUICK
        task = asyncio.create_task(self._asked(address, request, wait), name=name)
        self._asks[address] = task
        task.add_done_callback(lambda done: self._ended(address, done))

    async def _asked(self, address: str, request: pb.PollRequest, wait: float) -> None:
        seconds = wait + _CALL_SECONDS_MAX
        try:
            answer = await self._caller.channels.call(address, POLL, request, seconds_max=seconds)
        except aio.AioRpcError as error:
            self._failed(failure_of(error, address))
            return
        self.answered_at = time.monotonic()
        self.failures.pop(address, None)
        self._arrived.extend(_Arrived(message, self.answered_at) for message in answer.messages)
        if answer.is_full and not answer.messages:
            self._full.add(address)
            self._rest_until[address] = time.monotonic() + _FULL_SECONDS

    def _failed(self, failure: RpcFailure) -> None:
        self.failures[failure.address] = failure
        if not failure.may_repeat:
            self.answered_at = time.monotonic()
            self._fatal = CallFailed(failure, {failure.address: failure}, 0.0)
            return
        if failure.reason:
            self.answered_at = time.monotonic()
        self._rest_until[failure.address] = time.monotonic() + _DOWN_SECONDS
        if failure.is_misrouted:
            self._caller.resolver.suspect()

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        if self._asks.get(address) is task:
            del self._asks[address]
        if not task.cancelled():
            # What is wrong here is wrong in this module; let it be seen.
            task.result()
        self._wake()
        if not self._wanted:
            self._hold()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- who rests

    def _rests(self, address: str) -> bool:
        return self._rest_until.get(address, 0.0) > time.monotonic()

    def _rest_seconds(self, targets: list[str]) -> float:
        """Until somebody may be asked again; a while even if nobody rests, for new brokers."""
        now = time.monotonic()
        rests = [self._rest_until[each] - now for each in targets if self._rests(each)]
        return max(0.001, min([*rests, WAIT_SECONDS_MAX if targets else _DOWN_SECONDS]))

    # ---- what arrived

    def _take(self, count_max: int) -> list[pb.Message]:
        count = min(count_max, len(self._arrived))
        return [self._arrived.popleft().message for _ in range(count)]

    def _hold(self) -> None:
        """Keep what is left for the next poll, for a moment."""
        if not self._wanted:
            # An ordered group's broker repeats them: kept, they would come after what follows them.
            self._drop_ordered()
        if self._arrived and self._releasing is None and not self._closed:
            loop = asyncio.get_running_loop()
            seconds = self._arrived[0].at + HOLD_SECONDS_MAX - time.monotonic()
            self._releasing = loop.call_later(max(0.0, seconds), self._release_old)

    def _release_old(self) -> None:
        self._releasing = None
        if not self._wanted:
            self._release(before=time.monotonic() - HOLD_SECONDS_MAX)
            self._hold()

    def _drop_ordered(self) -> None:
        self._arrived = deque(each for each in self._arrived if not _is_ordered(each.message))

    def _release(self, *, before: float = inf) -> None:
        tokens = []
        while self._arrived and self._arrived[0].at <= before:
            tokens.append(self._arrived.popleft().message.token)
        if not tokens:
            return
        task = asyncio.create_task(self._return(tokens), name="queue-give-back")
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return(self, tokens: list[bytes]) -> None:
        await self._give_back(tokens)


def _is_ordered(message: pb.Message) -> bool:
    return message.token[:1] == _ORDERED


_ORDERED: Final = bytes([TokenKind.ORDERED])
_QUICK: Final = "queue-poll"
_WAITING: Final = "queue-poll-waiting"
