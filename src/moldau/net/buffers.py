"""Receive buffers, and the broker-wide budget of request bytes.

A connection between frames holds no buffer, so thousands of idle ones cost little. Reads go to one
shared scratch buffer; only an incomplete frame gets its own buffer, from a pool of powers of two.
Buffers are pooled because page faults of large new ones cost more than copying.
"""

from collections import deque
from collections.abc import Callable

SCRATCH_BYTES = 256 * 1024
_POOLED_BYTES_MIN = 64 * 1024
_KEPT_BYTES_MAX = 32 * 1024 * 1024


class BufferPool:
    """Buffers by size class; keeps a limited number of free ones."""

    def __init__(self) -> None:
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self._sealed: bytearray | None = None
        self._free: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    @property
    def sealed(self) -> bytearray:
        """The shared buffer for encrypted data. Smaller than scratch, so that what it decrypts
        to fits there, with an incomplete record from before."""
        if self._sealed is None:
            self._sealed = bytearray(SCRATCH_BYTES - 2 * 16 * 1024)
        return self._sealed

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; its content is arbitrary."""
        capacity = max(_POOLED_BYTES_MIN, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        if free:
            self._kept_bytes -= capacity
            return free.pop()
        return bytearray(capacity)

    def give_back(self, buffer: bytearray) -> None:
        capacity = len(buffer)
        if self._kept_bytes + capacity <= _KEPT_BYTES_MAX:
            self._kept_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)


class ByteBudget:
    """Bytes of requests being received or handled, over all connections.

    A connection that finds it exhausted stops reading, and is called back, in order, by a release.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.muted = 0
        """Of these, what muted connections keep."""
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def exhausted(self) -> bool:
        return self.used >= self.bytes_max

    def acquire(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        while self._waiting and not self.exhausted:
            self._waiting.popleft()()

    def when_free(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)
