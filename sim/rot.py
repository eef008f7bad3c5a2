"""Bit rot: one bit of a stored record is another one when its broker starts again.

Only below what the file says was flushed: there the product promises to notice, and to repair a
replica from the others where there are three. While a broker runs, rot is found by its scrub alone.
"""

import random
from typing import Final

from msgspec import Struct

from moldau.log.flush_mark import HEADER_BYTES, decode_mark
from moldau.model.ids import Offset
from moldau.records import batch
from moldau.records.batch import BatchFormatError, read_header
from sim.node import Node
from sim.simdisk import SimDisk

_METADATA: Final = "metadata"
_CHECKED_FROM: Final = 21
"""Of a batch: what lies before is not covered by its checksum."""


class Rot(Struct, frozen=True):
    """One bit that was flipped."""

    node: Node
    path: str
    byte: int
    bit: int
    value: int

    @property
    def is_there(self) -> bool:
        """It was not repaired yet."""
        disk = self.node.disk
        if not disk.exists(self.path):
            return False
        data = disk.read(self.path)
        return self.byte < len(data) and data[self.byte] == self.value

    def mend(self) -> None:
        """As from a backup."""
        if self.is_there:
            self.node.disk.flip_bit(self.path, self.byte, self.bit)


def flip(node: Node, folder: str, rng: random.Random) -> Rot | None:
    """In one of the files of a partition, whose broker is down; None: nothing is stored there."""
    disk = node.disk
    names = [name for name in disk.listdir(folder) if name.endswith(".log")]
    rng.shuffle(names)
    for name in names:
        path = f"{folder}/{name}"
        found = _flushed_batches(disk, path, int(name.split(".")[0].split("-")[0]))
        if not found:
            continue
        at, size = rng.choice(found)
        return _flip(node, path, at + rng.randrange(_CHECKED_FROM, size), rng)
    return None


def flip_snapshot(node: Node, rng: random.Random) -> Rot | None:
    """In the newest snapshot of the metadata; None: there is none."""
    disk = node.disk
    names = sorted(name for name in disk.listdir(_METADATA) if name.endswith(".snapshot"))
    if not names:
        return None
    path = f"{_METADATA}/{names[-1]}"
    return _flip(node, path, rng.randrange(len(disk.read(path))), rng)


def _flip(node: Node, path: str, byte: int, rng: random.Random) -> Rot:
    bit = rng.randrange(8)
    node.disk.flip_bit(path, byte, bit)
    return Rot(node, path, byte, bit, node.disk.read(path)[byte])


def _flushed_batches(disk: SimDisk, path: str, base: int) -> list[tuple[int, int]]:
    """Position and size of those of which the disk itself tells that they were flushed."""
    data = disk.durable_bytes(path) or b""
    mark, _ = decode_mark(data[:HEADER_BYTES], Offset(base))
    end = mark.flushed_position if mark is not None else 0
    found = []
    at = HEADER_BYTES
    while at + batch.HEADER_BYTES <= end:
        try:
            size = read_header(data, at).size
        except BatchFormatError:
            break
        if at + size <= end:
            found.append((at, size))
        at += size
    return found
