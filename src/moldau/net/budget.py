"""The budget of request bytes over all connections, and the share of one client in it.

It counts buffers as large as they are, never what a client announces. While less than half of it
is used, everyone takes what they need. Beyond that one client, by its address and by its user,
has at most a quarter.

Frames that have arrived in part and wait for more room would wait for each other. So one frame at
a time may exceed a full share: the first that asks, until it is complete, or too slow and closed.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Final

_KIB: Final = 1024
_SMALL_BYTES: Final = 64 * _KIB
_EAGER_BYTES: Final = 1024 * _KIB
_SMALL_BYTES_BEFORE_LOGIN: Final = 4 * _KIB
_BEFORE_LOGIN_PART: Final = 16
_PLENTY_PART: Final = 2
_CLIENT_PART: Final = 4


class Share:
    """What one client holds, or all of them."""

    __slots__ = ("accounts", "first", "used", "waiting")

    def __init__(self) -> None:
        self.accounts = 0
        self.used = 0
        self.first: Account | None = None
        """The one that may exceed it."""
        self.waiting: list[Callable[[], None]] = []

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class ByteBudget:
    """Bytes of requests being received or handled.

    A connection that finds its share full stops reading, and is called back by a release.
    """

    def __init__(
        self,
        bytes_max: int,
        *,
        small_bytes: int = _SMALL_BYTES,
        eager_bytes: int = _EAGER_BYTES,
    ) -> None:
        self.bytes_max = bytes_max
        self.small_bytes = small_bytes
        """The smallest buffer. Requests that fit into it never wait."""
        self._eager_bytes = eager_bytes
        self.muted = 0
        """Of what is used, what muted connections keep."""
        self.whole = Share()
        self._clients: dict[str, Share] = {}
        self._hungry: dict[Share, None] = {}
        """Shares for which somebody may wait."""
        self._plenty = bytes_max // _PLENTY_PART
        self._client_bytes_max = bytes_max // _CLIENT_PART

    @cached_property
    def before_login(self) -> "ByteBudget":
        """For clients that have yet to say who they are: small, with small buffers."""
        small = _SMALL_BYTES_BEFORE_LOGIN
        part = self.bytes_max // _BEFORE_LOGIN_PART
        return ByteBudget(part, small_bytes=small, eager_bytes=small)

    @property
    def used(self) -> int:
        return self.whole.used

    @property
    def eager_bytes(self) -> int:
        """What a connection reads at once, and a request gets before its bytes have arrived."""
        return self._eager_bytes if self.has_plenty else self.small_bytes

    @property
    def has_plenty(self) -> bool:
        return self.whole.used < self._plenty

    @property
    def exhausted(self) -> bool:
        return self.whole.used >= self.bytes_max

    @property
    def is_muted_full(self) -> bool:
        return self.muted > self._plenty

    def is_full(self, share: Share) -> bool:
        if share is self.whole:
            return self.exhausted
        return share.used >= self._client_bytes_max and not self.has_plenty

    def acquire(self, size: int) -> None:
        self.whole.used += size

    def release(self, size: int) -> None:
        had_plenty = self.has_plenty
        self.whole.used -= size
        if had_plenty:
            return
        if self.whole.waiting and not self.exhausted:
            self.whole.wake()
        if self.has_plenty:
            hungry, self._hungry = self._hungry, {}
            for share in hungry:
                share.wake()

    def wait(self, share: Share, callback: Callable[[], None]) -> None:
        share.waiting.append(callback)
        self._hungry[share] = None

    def open_share(self, client: str) -> Share:
        share = self._clients.get(client)
        if share is None:
            share = self._clients[client] = Share()
        share.accounts += 1
        return share

    def close_share(self, client: str) -> None:
        share = self._clients[client]
        share.accounts -= 1
        if not share.accounts:
            del self._clients[client]


class Account:
    """What one connection holds of a budget."""

    __slots__ = ("_address", "_clients", "_is_first", "_main", "_shares", "budget", "muted", "used")

    def __init__(self, budget: ByteBudget, address: str) -> None:
        self._main = budget
        self._address = f"address {address}"
        self._is_first = False
        self._open(budget, (self._address,))

    def _open(
        self, budget: ByteBudget, clients: tuple[str, ...], used: int = 0, muted: int = 0
    ) -> None:
        self.budget = budget
        self._clients = clients
        self._shares = tuple(budget.open_share(client) for client in clients)
        self.used = self.muted = 0
        self.acquire(used)
        self.mute(muted)

    def close(self) -> None:
        """Nothing of it is held any more."""
        self.mute(0)
        self.release(self.used)
        self.yield_turn()
        for client in self._clients:
            self.budget.close_share(client)
        self._clients = self._shares = ()

    def _move(self, budget: ByteBudget, *clients: str) -> None:
        if budget is not self.budget or clients != self._clients:
            used, muted = self.used, self.muted
            self.close()
            self._open(budget, clients, used, muted)

    # ---- whose it is

    def await_login(self) -> None:
        """Count it with those of unknown clients from now on."""
        self._move(self._main.before_login, self._address)

    @property
    def awaits_login(self) -> bool:
        return self.budget is not self._main

    def log_in(self, user: str) -> None:
        """Count it for this user, too."""
        self._move(self._main, self._address, f"user {user}")

    # ---- what it holds

    def acquire(self, size: int) -> None:
        self.used += size
        self.budget.acquire(size)
        for share in self._shares:
            share.used += size

    def release(self, size: int) -> None:
        self.used -= size
        budget = self.budget
        budget.release(size)
        for share in self._shares:
            share.used -= size
            if share.waiting and not budget.is_full(share):
                share.wake()

    def mute(self, size: int) -> None:
        """So much of it is kept by the connection while it is muted."""
        self.budget.muted += size - self.muted
        self.muted = size

    # ---- when there is little

    def _full(self) -> list[Share]:
        budget = self.budget
        if budget.has_plenty:
            return []
        return [share for share in (budget.whole, *self._shares) if budget.is_full(share)]

    @property
    def is_full(self) -> bool:
        return bool(self._full())

    def has_turn(self) -> bool:
        """Whether a frame of this connection may have more, if need be as the only one."""
        full = self._full()
        if any(share.first not in (None, self) for share in full):
            return False
        for share in full:
            share.first = self
            self._is_first = True
        return True

    def yield_turn(self) -> None:
        """The frame is complete, or its connection does not read on."""
        if self._is_first:
            self._is_first = False
            for share in (self.budget.whole, *self._shares):
                if share.first is self:
                    share.first = None
                    share.wake()

    def wait(self, callback: Callable[[], None]) -> bool:
        """Call back when there may be room; False if there is."""
        full = self._full()
        if not full:
            return False
        taken = [share for share in full if share.first not in (None, self)]
        self.budget.wait((taken or full)[0], callback)
        return True
