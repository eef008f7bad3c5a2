"""The markers that end transactions in a partition: control batches, identical to Kafka's.

A marker is a batch of one record: its key contains version and type (0 abort, 1 commit), its value
version and epoch of the coordinator that ended the transaction. It has the producer's id and epoch,
no sequence, and takes up one offset.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    BatchFormatError,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.records.record import Record, build_batch, read_records

TRANSACTIONS_V2: Final = 2
"""From this transaction version on, a producer gets a new epoch with each transaction, so a marker
has a higher epoch than the batches before it (KIP-890)."""
_ABORT: Final = 0
_COMMIT: Final = 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
# Length of the record, attributes, two deltas, length of the key; then the key; length of the
# value; then the value; number of headers.
_BODY = struct.Struct(">5shhBhiB")
_BODY_HEAD: Final = bytes((0x20, 0, 0, 0, 0x08))
_VALUE_LENGTH: Final = 0x0C
_MARKER_BYTES: Final = HEADER_BYTES + _BODY.size
_NO_COORDINATOR: Final = -1


class EndMarker(NamedTuple):
    """The end of a transaction, and the coordinator epoch in which it was decided."""

    is_commit: bool
    coordinator_epoch: int


def build_end_marker(
    producer_id: ProducerId, producer_epoch: ProducerEpoch, marker: EndMarker, now: TimestampMs
) -> bytes:
    """The complete control batch, without its offset and epoch."""
    record = Record(
        Offset(0),
        now,
        _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT),
        _VALUE.pack(0, marker.coordinator_epoch),
        [],
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_marker(buffer: Buffer, position: int = 0) -> EndMarker | None:
    """The marker of the control batch at `position`, whose checksum was verified.

    None if compaction has emptied it, or if it is a control batch of another kind. Raises
    BatchFormatError.
    """
    header = read_header(buffer, position)
    if not header.attributes & CONTROL_BIT:
        raise BatchFormatError(f"the batch at offset {header.base_offset} is not a control batch")
    if not header.record_count:
        return None
    view = memoryview(buffer)[position : position + header.size]
    if header.size == _MARKER_BYTES:
        head, version, kind, length, _, epoch, _ = _BODY.unpack_from(view, HEADER_BYTES)
        if head == _BODY_HEAD and length == _VALUE_LENGTH and version == 0:
            return _marker(kind, epoch)
    # Another version may have more fields, but begins with the same.
    record = read_records(bytes(view))[0]
    if record.key is None or len(record.key) < _KEY.size:
        raise BatchFormatError(f"control record at offset {header.base_offset} without a type")
    _, kind = _KEY.unpack_from(record.key)
    epoch = _NO_COORDINATOR
    if record.value is not None and len(record.value) >= _VALUE.size:
        _, epoch = _VALUE.unpack_from(record.value)
    return _marker(kind, epoch)


def end_markers(buffer: Buffer, headers: Sequence[BatchHeader]) -> dict[Offset, EndMarker]:
    """The markers in a run of batches, whose checksums were verified, by offset.

    Raises BatchFormatError.
    """
    found = {}
    position = 0
    for header in headers:
        if header.attributes & CONTROL_BIT:
            marker = read_end_marker(buffer, position)
            if marker is not None:
                found[header.base_offset] = marker
        position += header.size
    return found


def _marker(kind: int, coordinator_epoch: int) -> EndMarker | None:
    if kind not in (_ABORT, _COMMIT):
        return None
    return EndMarker(kind == _COMMIT, coordinator_epoch)
