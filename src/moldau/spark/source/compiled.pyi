"""The types of compiled.pyx."""

from collections.abc import Callable

from moldau.spark.source.fetched_batches import BatchBody, DecodedColumns

def scan(
    data: memoryview, start: int, end: int, crc32c: Callable[[memoryview], int]
) -> tuple[int, bytearray] | None: ...
def packed(bodies: list[BatchBody]) -> bytearray: ...
def decode(
    data: memoryview, packed: bytearray, start: int, end: int, with_headers: bool
) -> DecodedColumns | None: ...
