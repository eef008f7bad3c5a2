"""Owns the choice of the decoder: the compiled one where it was built, else that of numpy.

`MOLDAU_SPARK_DECODER=numpy` in the environment of Spark's workers takes numpy in any case.
"""

import logging
import os
from typing import Any

from crc32c import crc32c

from moldau.spark.source.bodies import Bodies, readable_bodies, whole_batches

Strings = tuple[int, int, Any, Any, Any]
"""A column of bytes: how many, how many of them null, then buffers: validity, offsets, data."""
Lists = tuple[int, Any, Any, Strings, Strings]
"""Headers: how many records have none, then buffers: validity, offsets; then names and values."""
Decoded = tuple[int, Any, Any, Any, Strings, Strings, Lists | None]
"""How many records, then buffers: offsets, times in µs, types of times; keys, values, headers."""

log = logging.getLogger(__name__)

KIND = "numpy"
"""Which one is in use."""
if os.environ.get("MOLDAU_SPARK_DECODER") != "numpy":
    try:
        from moldau.spark.source import compiled

        KIND = "compiled"
    except ImportError:
        # An install without a C compiler.
        pass
log.info("records are decoded by: %s", KIND)


def scan(fetched: memoryview, start: int, end: int) -> tuple[int, bytearray] | None:
    """The offset after the whole batches of `fetched`, and those that hold offsets from `start` to
    before `end`, as `Bodies` packs them. None if `bodies.py` must look, in case of doubt."""
    return compiled.scan(fetched, start, end, crc32c) if KIND == "compiled" else None


def decode(found: Bodies, end: int, with_headers: bool) -> Decoded:
    """The records with offsets before `end`. Raises BatchFormatError."""
    bodies = [body for body in found.bodies if body.header.record_count]
    if KIND == "compiled":
        packed = compiled.packed(bodies) if found.packed is None else found.packed
        decoded = compiled.decode(found.data, packed, found.start, end, with_headers)
        if decoded is not None:
            return decoded
        if found.packed is not None:
            batches = whole_batches(found.data, end)
            (listed,) = readable_bodies(found.data, batches, (), start=found.start, end=end)
            return decode(listed, end, with_headers)
    # Where something is wrong this one can say what. Not imported before: it takes a while.
    from moldau.spark.source import plain

    return plain.decode(found.data, bodies, found.start, end, with_headers)
