"""Owns the look at received entries for markers of transactions, while their bytes are at hand."""

from collections.abc import Sequence

from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset
from moldau.records.batch import CONTROL_BIT, BatchFormatError
from moldau.records.control import EndMarker, read_end_marker
from moldau.replica.peer_codec import BatchRun, Part


def read_markers(parts: Sequence[Part]) -> dict[Offset, EndMarker]:
    """What the control batches among them say, by offset. Raises CorruptionError."""
    markers: dict[Offset, EndMarker] = {}
    for part in parts:
        if not isinstance(part, BatchRun):
            continue
        position = 0
        for header in part.headers:
            if header.attributes & CONTROL_BIT:
                try:
                    marker = read_end_marker(part.data, position)
                except BatchFormatError as error:
                    raise CorruptionError(str(error)) from None
                if marker is not None:
                    markers[header.base_offset] = marker
            position += header.size
    return markers
