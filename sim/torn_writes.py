"""Models what a power failure does to unflushed writes. Pure: bytes and chance in, bytes out."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

SECTOR_BYTES = 512
"""The unit that a drive writes atomically."""
_RATES = (0.0, 0.1, 0.5, 0.9, 1.0)

T = TypeVar("T")


class Write(NamedTuple):
    position: int
    data: bytes


class Truncation(NamedTuple):
    size: int


ByteOp = Write | Truncation


class CrashRates(NamedTuple):
    """Probabilities of one power failure. Drawn per crash: fixed ones would hide the extremes."""

    is_ordered: bool
    """A prefix survives, as with a journal; otherwise each change independently."""
    survival: float
    """Probability that a change survives whole (if not ordered)."""
    tearing: float
    """Probability that a write which does not survive whole survives in part."""
    sectors: float
    """Probability that a torn write loses arbitrary sectors, rather than its end."""
    growing: float
    """Probability that a lost write still extends the file, with zeros."""

    @classmethod
    def draw(cls, rng: random.Random) -> "CrashRates":
        return cls(
            is_ordered=rng.random() < 0.4,
            survival=rng.choice(_RATES),
            tearing=rng.choice(_RATES),
            sectors=rng.choice(_RATES),
            growing=rng.choice(_RATES[:4]),
        )


def apply_byte_op(content: bytearray, op: ByteOp) -> None:
    """Change a file's bytes; gaps are filled with zeros."""
    match op:
        case Write(position, data):
            if position > len(content):
                content.extend(bytes(position - len(content)))
            content[position : position + len(data)] = data
        case Truncation(size):
            if size <= len(content):
                del content[size:]
            else:
                content.extend(bytes(size - len(content)))


def surviving_ops(ops: Sequence[T], rates: CrashRates, rng: random.Random) -> list[T]:
    """Which atomic changes (of names) survived, in order."""
    if rates.is_ordered:
        return list(ops[: rng.randint(0, len(ops))])
    return [op for op in ops if rng.random() < rates.survival]


def surviving_bytes(
    durable: bytes | bytearray, pending: Sequence[ByteOp], rates: CrashRates, rng: random.Random
) -> bytearray:
    """A file after the crash: its durable bytes, and the outcome of every change since."""
    content = bytearray(durable)
    whole_count = rng.randint(0, len(pending)) if rates.is_ordered else 0
    for index, op in enumerate(pending):
        if rates.is_ordered:
            if index > whole_count:
                break
            survives = index < whole_count
        else:
            survives = rng.random() < rates.survival
        if survives:
            apply_byte_op(content, op)
        elif isinstance(op, Write):
            _tear(content, op, rates, rng)
    return content


def _tear(content: bytearray, write: Write, rates: CrashRates, rng: random.Random) -> None:
    if rng.random() < rates.tearing:
        if rng.random() < rates.sectors:
            _write_sectors(content, write, rng)
        else:
            cut = rng.randint(0, len(write.data))
            if cut:
                apply_byte_op(content, Write(write.position, write.data[:cut]))
    if rng.random() < rates.growing:
        end = write.position + len(write.data)
        if end > len(content):
            apply_byte_op(content, Truncation(end))


def _write_sectors(content: bytearray, write: Write, rng: random.Random) -> None:
    """Each sector of the write survives or not, independently."""
    position = write.position
    end = position + len(write.data)
    while position < end:
        sector_end = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.5:
            data = write.data[position - write.position : sector_end - write.position]
            apply_byte_op(content, Write(position, data))
        position = sector_end
