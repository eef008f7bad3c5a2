"""Receive buffers.

A connection between frames holds no buffer, so thousands of idle ones cost little. Reads go to one
shared scratch buffer; only an incomplete frame gets its own buffer, from a pool of powers of two.
Buffers are pooled because page faults of large new ones cost more than copying. Beyond the largest
of the pool a buffer grows where it is, step by step: no step holds up the event loop.
"""

from typing import Final

SCRATCH_BYTES: Final = 256 * 1024
STEP_BYTES: Final = 4 * 1024 * 1024
"""The largest buffer of the pool, and what a larger one grows by."""
_KEPT_BYTES_MAX: Final = 32 * 1024 * 1024


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
        capacity = size if size > STEP_BYTES else 1 << (size - 1).bit_length()
        free = self._free.get(capacity)
        if free:
            self._kept_bytes -= capacity
            return free.pop()
        return bytearray(capacity)

    def grow(self, buffer: bytearray, wanted: int) -> bytearray:
        """A larger buffer with the same content, but not much larger than `wanted`; the given one
        must not be used any more. Nobody may have a view of one that is larger than a step."""
        size = len(buffer)
        if size < STEP_BYTES:
            grown = self.take(min(wanted, 2 * size))
            grown[:size] = buffer
            self.give_back(buffer)
            return grown
        if size == STEP_BYTES:
            # Of the pool: somebody may still have a view of it, and then it could not grow.
            grown = bytearray(buffer)
            self.give_back(buffer)
        else:
            grown = buffer
        grown.extend(bytes(min(wanted - size, STEP_BYTES)))
        return grown

    def give_back(self, buffer: bytearray) -> None:
        capacity = len(buffer)
        if capacity <= STEP_BYTES and self._kept_bytes + capacity <= _KEPT_BYTES_MAX:
            self._kept_bytes += capacity
            self._free.setdefault(capacity, []).append(buffer)
