"""What compiled.pyx offers once it is built."""

from collections.abc import Callable

from moldau.spark.source.bodies import Body
from moldau.spark.source.decoding import Decoded

def scan(
    data: memoryview, start: int, end: int, crc32c: Callable[[memoryview], int]
) -> tuple[int, bytearray] | None: ...
def packed(bodies: list[Body]) -> bytearray: ...
def decode(
    data: memoryview, packed: bytearray, start: int, end: int, with_headers: bool
) -> Decoded | None: ...
