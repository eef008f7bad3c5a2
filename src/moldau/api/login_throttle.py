"""Slows down failed logins, and logs them once instead of once per try.

Three counts of recent failures, each with a cost of its own:

- of a user at an address: its next attempts wait, longer each time, whether they are right or
  wrong, so that the speed of an answer tells nothing. The same user at other addresses does not
  wait: nobody can lock a user out from afar. Where the user has logged in before, its programs may
  still try an old password: twice as many attempts are looked at. A right one delays no others.
- of an address, for those who try many names: the same, with more attempts free. Users who have
  logged in there before do not wait: one client cannot keep out all others behind its address.
- of a user, for those who come from many addresses: only the refusals are delayed.

All tables have a bound, so that unknown clients cannot fill the memory.
"""

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Final

from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.net.networks import network_of

log = logging.getLogger(__name__)

REFUSAL_SECONDS: Final = 0.25
"""Every refusal takes at least this long, which hides how far a login got."""
REFUSAL_SECONDS_MAX: Final = 2.0
WAIT_SECONDS_MAX: Final = 5.0
"""An attempt that would wait longer is refused without a look at its password."""
FORGIVE_SECONDS: Final = 60.0
"""A user at an address is forgiven its failures once in this time, when it logs in."""
LOG_SECONDS: Final = 60.0
_BEYOND_MAX: Final = 8
_AT_ONCE_MAX: Final = 16
_ENTRIES_MAX: Final = 8192
_LOGGED_MAX: Final = 1024
_REASONS_MAX: Final = 8
"""Lines about one address in `LOG_SECONDS`: reasons name users, and anyone can make up names."""
_NAME_CHARACTERS_MAX: Final = 128


class Pace:
    """How the attempts of one kind of key are spaced."""

    __slots__ = ("count_max", "forgotten_per_second", "free", "seconds_first", "seconds_max")

    def __init__(
        self, *, free: int, forget_seconds: float, seconds_first: float, seconds_max: float
    ) -> None:
        self.free = free
        """Failures that cost nothing: people mistype."""
        self.forgotten_per_second = 1 / forget_seconds
        self.seconds_first = seconds_first
        self.seconds_max = seconds_max
        self.count_max = free + _BEYOND_MAX
        """More are not counted, so that the end of an attack is soon forgotten."""

    def seconds(self, failures: float) -> float:
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        return min(self.seconds_first * math.exp2(beyond), self.seconds_max)


_PAIR: Final = Pace(free=5, forget_seconds=30, seconds_first=0.25, seconds_max=4.0)
_KNOWN_PAIR: Final = Pace(free=10, forget_seconds=2, seconds_first=0.25, seconds_max=2.0)
"""Of a user who has logged in at the address: its other programs there may still have an old
password, and try it again and again. Half a guess per second is nothing, and few programs fail
more often."""
_ADDRESS: Final = Pace(free=100, forget_seconds=1, seconds_first=0.05, seconds_max=0.5)
"""One misconfigured client that tries again and again must not slow down all behind its address:
as a pair it fails less often than these failures are forgotten."""
_USER: Final = Pace(
    free=10,
    forget_seconds=5,
    seconds_first=0.25,
    seconds_max=REFUSAL_SECONDS_MAX - REFUSAL_SECONDS,
)


class _Failures:
    __slots__ = ("count", "next_at", "updated_at")

    def __init__(self) -> None:
        self.count = 0.0
        self.updated_at = 0.0
        self.next_at = float("-inf")
        """When the next attempt may be looked at."""


class Turn:
    """An attempt that may be looked at, and how long those after it wait for it."""

    __slots__ = ("charges",)

    def __init__(self, charges: Sequence[tuple[_Failures, float]] = ()) -> None:
        self.charges = charges

    def give_back(self) -> None:
        """It was no guess: nobody waits for it."""
        for failures, seconds in self.charges:
            failures.next_at -= seconds


FREE_TURN: Final = Turn()


class _Logged:
    """What was logged of an address in the last while."""

    __slots__ = ("left_out", "reasons", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.reasons: set[str] = set()
        self.left_out = 0


class _Slots:
    __slots__ = ("free", "users")

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_AT_ONCE_MAX)
        self.users = 0


class LoginThrottle:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Users who have logged in, with their addresses; and when failures were forgiven."""
        self._logged: OrderedDict[str, _Logged] = OrderedDict()
        self._slots: dict[str, _Slots] = {}
        """Of addresses with attempts under way."""

    async def admit(self, user: str, host: str) -> Turn | None:
        """Wait for this attempt's turn. None: too many wait already, refuse it unseen."""
        now = self._clock.monotonic()
        pair = _pair(user, host)
        keys: list[tuple[Hashable, Pace]] = [(pair, self._pace(pair))]
        if pair not in self._known:
            keys.append((pair[1], _ADDRESS))
        turns = [
            (failures, seconds)
            for key, pace in keys
            if (failures := self._failures.get(key)) is not None
            and (seconds := pace.seconds(self._remaining(failures, pace, now)))
        ]
        if not turns:
            return FREE_TURN
        start = max(now, *(failures.next_at for failures, _ in turns))
        if start - now > WAIT_SECONDS_MAX:
            return None
        for failures, seconds in turns:
            failures.next_at = start + seconds
        if start > now:
            await asyncio.sleep(start - now)
        return Turn(turns)

    @contextlib.asynccontextmanager
    async def turn(self, user: str, host: str) -> AsyncIterator[Turn | None]:
        """For an attempt that takes work: as `admit`, and only a few of an address at once, so that
        many do not all begin before the first of them has failed."""
        if _pair(user, host) in self._known:
            yield await self.admit(user, host)
            return
        network = network_of(host)
        slots = self._slots.setdefault(network, _Slots())
        slots.users += 1
        try:
            try:
                async with asyncio.timeout(WAIT_SECONDS_MAX):
                    await slots.free.acquire()
            except TimeoutError:
                yield None
                return
            try:
                yield await self.admit(user, host)
            finally:
                slots.free.release()
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[network]

    def suspect(self, user: str, host: str) -> None:
        """Count an attempt of this user as failed until `succeeded` says otherwise.

        For attempts that take time, or many at once would all be free.
        """
        pair = _pair(user, host)
        self._count(pair, self._pace(pair))

    def _pace(self, pair: tuple[str, str]) -> Pace:
        return _KNOWN_PAIR if pair in self._known else _PAIR

    def succeeded(
        self, user: str, host: str, turn: Turn = FREE_TURN, *, suspected: bool = False
    ) -> None:
        """A user has logged in, and its failures are forgiven, but seldom: a client that logs in
        all the time would else make guesses of others at its address free.

        The address is not forgiven: an attacker who is also a user could reset it."""
        turn.give_back()
        pair = _pair(user, host)
        now = self._clock.monotonic()
        forgiven_at = self._known.pop(pair, float("-inf"))
        if now - forgiven_at >= FORGIVE_SECONDS:
            if self._failures.pop(pair, None) is not None:
                forgiven_at = now
        elif suspected and (failures := self._failures.get(pair)) is not None:
            failures.count = max(failures.count - 1, 0.0)
        self._known[pair] = forgiven_at
        if len(self._known) > _ENTRIES_MAX:
            self._known.popitem(last=False)

    def failed(self, user: str, host: str, *, suspected: bool = False) -> float:
        """Count a failure; the seconds that its refusal takes."""
        self._count(network_of(host), _ADDRESS)
        if not suspected:
            self.suspect(user, host)
        return REFUSAL_SECONDS + _USER.seconds(self._count((None, _short(user)), _USER))

    def _count(self, key: Hashable, pace: Pace) -> float:
        now = self._clock.monotonic()
        failures = self._failures.get(key)
        if failures is None:
            failures = self._failures[key] = _Failures()
            if len(self._failures) > _ENTRIES_MAX:
                self._failures.popitem(last=False)
        else:
            self._failures.move_to_end(key)
        failures.count = min(self._remaining(failures, pace, now) + 1, pace.count_max)
        failures.updated_at = now
        return failures.count

    def _remaining(self, failures: _Failures, pace: Pace, now: float) -> float:
        """The failures that are not forgotten yet."""
        gone = (now - failures.updated_at) * pace.forgotten_per_second
        return max(failures.count - gone, 0.0)

    def log_failure(self, host: str, reason: str) -> None:
        """Once per reason and address in a while, with the number of those left out."""
        now = self._clock.monotonic()
        network = network_of(host)
        seen = self._logged.get(network)
        left_out = 0
        if seen is None or now - seen.since >= LOG_SECONDS:
            left_out = 0 if seen is None else seen.left_out
            seen = self._logged[network] = _Logged(now)
            self._logged.move_to_end(network)
            if len(self._logged) > _LOGGED_MAX:
                self._logged.popitem(last=False)
        if reason in seen.reasons or len(seen.reasons) >= _REASONS_MAX:
            seen.left_out += 1
            return
        seen.reasons.add(reason)
        more = f" ({left_out} more failed before)" if left_out else ""
        log.warning(
            "login from %s failed: %s%s",
            host,
            reason,
            more,
            extra=events.LOGIN_FAILED(address=host),
        )


def _pair(user: str, host: str) -> tuple[str, str]:
    return _short(user), network_of(host)


def _short(user: str) -> str:
    return user[:_NAME_CHARACTERS_MAX]
