"""One step of a scrub: reads and checks some flushed batches of a segment, off the event loop.

Flushed bytes do not change, but may be truncated, compacted or deleted while a step runs: then its
result is ignored (end_check).
"""

from moldau.log.filesystem import File
from moldau.log.scan import walk_batches
from moldau.log.segment import Segment
from moldau.model.ids import Offset


class SegmentCheck:
    """Checks about bytes_max of one segment from `position` on, nothing beyond `limit`."""

    def __init__(
        self, segment: Segment, position: int, limit: int, bytes_max: int, truncations: int
    ) -> None:
        self.segment = segment
        self._file: File = segment.file()
        self.start = self.reached = position
        self.limit = limit
        self._bytes_max = bytes_max
        self.truncations = truncations
        self.next_offset: Offset = segment.base_offset
        self.damage = ""
        """The error at `reached`; empty if there is none."""

    @property
    def size(self) -> int:
        """Bytes whose checksums matched."""
        return self.reached - self.start

    def run(self) -> None:
        try:
            for placed, _ in walk_batches(self._file, self.start, self.limit):
                self.reached = placed.position + placed.header.size
                self.next_offset = placed.header.next_offset
                if self.size >= self._bytes_max:
                    return
        except OSError as error:
            self.damage = f"cannot be read ({error})"
            return
        if self.reached < self.limit:
            self.damage = "checksum mismatch"
