"""What a connection has received and not handled: the start of a frame, or frames that wait.

A length prefix proves nothing. A frame gets its memory as its bytes arrive, and it must arrive at
some rate: a byte now and then does not keep it.
"""

from typing import Final

from moldau.net.budget import Account
from moldau.net.buffers import BufferPool

LENGTH_BYTES: Final = 4
QUIET_SECONDS_MAX: Final = 30.0
"""A connection with an incomplete frame is closed after this long without data."""
_BYTES_PER_SECOND_MIN: Final = 256 * 1024
"""Of a frame that takes longer."""


class PartialFrame:
    """A buffer of one connection, if it needs one; `position` and `filled` say what is in it."""

    __slots__ = ("_account", "_pool", "began_at", "buffer", "filled", "is_incomplete", "position")

    def __init__(self, account: Account, pool: BufferPool) -> None:
        self._account = account
        self._pool = pool
        self.buffer: bytearray | None = None
        self.position = 0
        self.filled = 0
        self.is_incomplete = False
        self.began_at = 0.0

    def keep(
        self, view: memoryview, position: int, end: int, *, now: float, is_muted: bool
    ) -> None:
        """Keep view[position:end]; a muted connection keeps no room for more."""
        rest = end - position
        if rest == 0:
            self.drop()
            return
        size = int.from_bytes(view[position : position + LENGTH_BYTES], "big")
        wanted = LENGTH_BYTES + (size if rest >= LENGTH_BYTES else 0)
        self.is_incomplete = rest < wanted
        old = self.buffer
        if old is not None and position == self.position:
            # The same frame as before. It gets more room when it needs it.
            self.filled = end
            return
        self.began_at = now
        self._account.yield_turn()
        if old is not None and len(old) - position >= max(rest, wanted) and not is_muted:
            self.position, self.filled = position, end
            return
        budget = self._account.budget
        ahead = 0 if is_muted else min(wanted, budget.eager_bytes)
        buffer = self._pool.take(max(rest, ahead, budget.small_bytes))
        buffer[:rest] = view[position:end]
        self.drop()
        self.buffer, self.filled = buffer, rest
        self._account.acquire(len(buffer))

    def make_room(self) -> bool:
        """Let a full buffer grow before more is read; False if the frame has to wait for that."""
        buffer = self.buffer
        if buffer is None or self.filled < len(buffer):
            return True
        wanted = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
        if wanted > self._account.budget.small_bytes and not self._account.has_turn():
            return False
        size = len(buffer)
        self.buffer = grown = self._pool.grow(buffer, wanted)
        self._account.acquire(len(grown) - size)
        return True

    def is_slow(self, now: float) -> bool:
        """Whether its bytes arrive too slowly."""
        seconds_max = QUIET_SECONDS_MAX + self.filled / _BYTES_PER_SECOND_MIN
        return now - self.began_at > seconds_max

    def drop(self) -> None:
        buffer = self.buffer
        if buffer is not None:
            self.buffer = None
            self._pool.give_back(buffer)
            self._account.release(len(buffer))
            self._account.yield_turn()
        self.position = self.filled = 0
