"""Owns bit rot: one bit of a stored record is another one when its broker starts again.

Only below what the file says was flushed: there the product promises to notice, and to repair a
replica from the others where there are three. While a broker runs, rot is found by its scrub alone.
"""

import random
from typing import Final

from msgspec import Struct

from moldau.log.mark import HEADER_BYTES, decode_mark
from moldau.model.ids import Offset
from moldau.records import batch
from moldau.records.batch import BatchFormatError, read_header
from moldau.testing.simdisk import SimDisk
from sim.node import Node

_CHECKED_FROM: Final = 21
"""Of a batch: what lies before is not covered by its checksum."""


class Rot(Struct, frozen=True):
    """One bit that was flipped."""

    node: Node
    path: str
    byte: int
    value: int

    @property
    def is_there(self) -> bool:
        """It was not repaired yet."""
        disk = self.node.disk
        if not disk.exists(self.path):
            return False
        data = disk.read(self.path)
        return self.byte < len(data) and data[self.byte] == self.value


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
        byte = at + rng.randrange(_CHECKED_FROM, size)
        disk.flip_bit(path, byte, rng.randrange(8))
        return Rot(node, path, byte, disk.read(path)[byte])
    return None


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
