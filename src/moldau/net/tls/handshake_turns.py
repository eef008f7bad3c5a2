"""Gives out the time for TLS handshakes of a broker: its listeners take turns.

With a share for each of them, more listeners would take more of the event loop; without turns, a
flood at one of them would leave nothing for the others.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from moldau.model.clock import Clock
from moldau.net.tls.handshake_time import SHARE_MAX, HandshakeTime

TakeTurn = Callable[[], bool]
"""Takes one step of a handshake; returns whether more wait for theirs."""


class HandshakeTurns:
    def __init__(self, loop: AbstractEventLoop, clock: Clock, share_max: float = SHARE_MAX) -> None:
        self._loop = loop
        self._time = HandshakeTime(clock, share_max)
        self._waiting: dict[TakeTurn, None] = {}
        """In the order of their turns."""
        self._timer: TimerHandle | None = None

    def is_free(self) -> bool:
        """Whether a step may be taken now, without a turn."""
        return not self._waiting and not self._time.wait_seconds()

    def took(self, seconds: float) -> None:
        """A step of a handshake took so long."""
        self._time.took(seconds)

    def ask(self, take: TakeTurn) -> None:
        """Call `take` when it is its turn, and again while it returns True."""
        self._waiting.setdefault(take)
        self._await_turn()

    def _await_turn(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_later(self._time.wait_seconds(), self._give)

    def _give(self) -> None:
        self._timer = None
        while self._waiting and not self._time.wait_seconds():
            take = next(iter(self._waiting))
            has_more = take()
            del self._waiting[take]
            if has_more:
                # Behind the other listeners.
                self._waiting[take] = None
        self._await_turn()
