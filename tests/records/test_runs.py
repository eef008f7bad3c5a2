"""Runs of stored batches: whole, in order, without a gap."""

import pytest

from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import BatchFormatError, stamp
from moldau.records.compact import is_filler
from moldau.records.record import Record, build_batch
from moldau.records.runs import filler_run, read_run


def run(offset: int, *counts: int) -> bytes:
    data = bytearray()
    for count in counts:
        record = Record(Offset(0), TimestampMs(1), b"k", b"v", [])
        batch = bytearray(build_batch([record] * count))
        stamp(batch, 0, offset, 3)
        data += batch
        offset += count
    return bytes(data)


def test_the_headers_of_a_run_follow_each_other():
    assert [header.base_offset for header in read_run(run(7, 2, 1, 3), 7)] == [7, 9, 10]
    assert read_run(b"", 7) == []


def test_a_gap_a_flipped_bit_or_a_missing_end_is_an_error():
    data = run(7, 2, 1)
    with pytest.raises(BatchFormatError, match="begins at 7"):
        read_run(data, 6)
    with pytest.raises(BatchFormatError, match="begins at 12"):
        read_run(data + run(12, 1), 7)
    for cut in range(1, len(data)):
        if cut != len(run(7, 2)):
            with pytest.raises(BatchFormatError):
                read_run(data[:cut], 7)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(BatchFormatError, match="checksum mismatch in the batch at offset 9"):
        read_run(damaged, 7)


@pytest.mark.parametrize("end", [1, 2**31 - 1, 2**31, 5 * 2**31 + 17])
def test_fillers_take_up_all_offsets_of_records_that_are_gone(end: int):
    headers = read_run(filler_run(0, end), 0)
    assert headers[-1].next_offset == end
    assert all(map(is_filler, headers))
    with pytest.raises(BatchFormatError, match="too far"):
        filler_run(0, 2**60)
