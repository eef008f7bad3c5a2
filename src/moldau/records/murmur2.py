"""The hash by which Kafka's Java producer assigns keys to partitions.

All clients and protocols use it, so that equal keys always go to the same partition. It is the
32-bit MurmurHash2 of the key, without its sign, modulo the number of partitions.
"""

from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_SHIFT: Final = 24
_WORD: Final = 4
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_SHORT_BYTES_MAX: Final = 64


def murmur2(data: bytes) -> int:
    """Unsigned, 32 bits."""
    size = len(data)
    value = (_SEED ^ size) & _MASK
    whole = size - size % _WORD
    for position in range(0, whole, _WORD):
        word = int.from_bytes(data[position : position + _WORD], "little")
        word = word * _FACTOR & _MASK
        word = (word ^ word >> _SHIFT) * _FACTOR & _MASK
        value = (value * _FACTOR & _MASK) ^ word
    if whole < size:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15


_murmur2_of_short: Final = lru_cache(maxsize=8192)(murmur2)
"""Keys repeat, and the hash takes longer than everything else for a short record."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with that key."""
    value = _murmur2_of_short(key) if len(key) <= _SHORT_BYTES_MAX else murmur2(key)
    return (value & _POSITIVE) % partitions
