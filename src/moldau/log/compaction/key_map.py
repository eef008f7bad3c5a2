"""The key map of compaction: for each key the offset of its newest record, in bounded memory.

Keys are kept as 16 bytes of a hash, in arrays of numbers with open addressing: 32 bytes a key at
the maximum load, a fifth of what a dict of Python objects takes. The capacity is known in advance;
a log with more keys is compacted in several rounds.

The hash is salted, so that clients cannot choose keys that collide. The salt changes the slot of a
key, and nothing that a caller sees.
"""

import os
import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b

MAP_BYTES_MAX = 64 * 1024 * 1024
_SLOT_BYTES = 24
_LOAD_MAX = 0.75
_SLOTS_MIN = 64
_two_numbers = struct.Struct("<QQ").unpack


def bytes_for(count: int) -> int:
    """Memory for a map of that many keys."""
    return int(count / _LOAD_MAX) * _SLOT_BYTES + _SLOT_BYTES * _SLOTS_MIN


class KeyMap:
    """Key to offset. Offsets only increase: records are added in log order."""

    __slots__ = ("_first", "_offsets", "_salt", "_second", "_slots", "capacity", "count")

    def __init__(self, bytes_max: int = MAP_BYTES_MAX) -> None:
        # Odd, because the hashes are: otherwise only half of the slots would be used.
        self._slots = max(_SLOTS_MIN, bytes_max // _SLOT_BYTES) - 1 | 1
        self._salt = os.urandom(blake2b.SALT_SIZE)
        self._first = array("Q", [0]) * self._slots
        self._second = array("Q", [0]) * self._slots
        self._offsets = array("q", [0]) * self._slots
        self.capacity = int(self._slots * _LOAD_MAX)
        self.count = 0

    @property
    def room(self) -> int:
        """Keys that may still be added."""
        return self.capacity - self.count

    def add(self, base_offset: int, deltas: Sequence[int], keys: Sequence[bytes | None]) -> None:
        """Add the records of a batch. The caller has checked that there is room for all."""
        first, second, offsets = self._first, self._second, self._offsets
        slots, salt = self._slots, self._salt
        for delta, key in zip(deltas, keys, strict=True):
            if key is None:
                continue
            one, two = _two_numbers(blake2b(key, digest_size=16, salt=salt).digest())
            one |= 1  # 0 marks an empty slot
            slot = one % slots
            while True:
                found = first[slot]
                if found == one:
                    if second[slot] == two:
                        break
                elif not found:
                    if self.count >= self.capacity:
                        raise ValueError("the map is full")
                    first[slot] = one
                    second[slot] = two
                    self.count += 1
                    break
                slot += 1
                if slot == slots:
                    slot = 0
            offsets[slot] = base_offset + delta

    def newest(self, keys: Sequence[bytes | None]) -> list[int]:
        """Offset of the newest record of each key; -1 for a key that is not in the map."""
        first, second, offsets = self._first, self._second, self._offsets
        slots, salt = self._slots, self._salt
        result = []
        for key in keys:
            if key is None:
                result.append(-1)
                continue
            one, two = _two_numbers(blake2b(key, digest_size=16, salt=salt).digest())
            one |= 1
            slot = one % slots
            while True:
                found = first[slot]
                if found == one and second[slot] == two:
                    result.append(offsets[slot])
                    break
                if not found:
                    result.append(-1)
                    break
                slot += 1
                if slot == slots:
                    slot = 0
        return result
