"""What compiled.pyx offers once it is built."""

from collections.abc import Callable

from moldau.spark.source.decoding import Decoded
from moldau.spark.source.fetched_batches import Body

def scan(
    data: memoryview, start: int, end: int, crc32c: Callable[[memoryview], int]
) -> tuple[int, bytearray] | None: ...
def packed(bodies: list[Body]) -> bytearray: ...
def decode(
    data: memoryview, packed: bytearray, start: int, end: int, with_headers: bool
) -> Decoded | None: ...
