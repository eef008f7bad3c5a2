"""The compiled decoder and that of numpy: the same columns, or the same error, whatever comes."""

import importlib
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import HEADER_BYTES, BatchFormatError, read_header, seal_batch
from moldau.records.compression import Codec
from moldau.records.record import Record, _encode_headers, _varint, build_batch
from moldau.spark.source import record_decoder
from moldau.spark.source.fetched_batches import (
    BatchBodies,
    BatchBody,
    readable_bodies,
    whole_batches,
)
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.record_decoder import record_batch

try:
    from moldau.spark.source import compiled
except ImportError:
    pytest.skip("the decoder is not compiled here", allow_module_level=True)

NOW = 1_700_000_000_000
END = 1 << 62
OFFSETS = st.integers(0, 60)


class Made(NamedTuple):
    """A record, and how far it is behind the one before: compaction leaves gaps."""

    gap: int
    time_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    def encoded(self, delta: int) -> bytes:
        def field(data: bytes | None) -> bytes:
            return b"\1" if data is None else _varint(len(data)) + data

        inner = (
            b"\0"
            + _varint(self.time_delta)
            + _varint(delta)
            + field(self.key)
            + field(self.value)
            + (_encode_headers(self.headers) if self.headers else b"\0")
        )
        return _varint(len(inner)) + inner


contents = st.one_of(
    st.none(), st.binary(max_size=5), st.sampled_from([63, 64, 200, 9000]).map(bytes)
)
records = st.builds(
    Made,
    st.integers(1, 3),
    st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1)),
    contents,
    contents,
    st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3)))),
)
batches = st.lists(
    st.tuples(st.lists(records, min_size=1, max_size=8), st.booleans()), min_size=1, max_size=3
)
changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


def batch(made: list[Made], base: int, *, is_append_time: bool, body_changes: Any = ()) -> bytes:
    """A batch whose checksum is right, even if its records were changed."""
    delta = -1
    body = bytearray()
    for record in made:
        delta += record.gap
        body += record.encoded(delta)
    for position, byte in body_changes:
        body[position % len(body)] = byte
    some = Record(Offset(0), TimestampMs(NOW), b"", b"", [])
    append_time = TimestampMs(NOW + 7) if is_append_time else None
    whole = bytearray(build_batch([some], base_offset=Offset(base), append_time=append_time))
    whole[HEADER_BYTES:] = body
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[23:27] = delta.to_bytes(4, "big")
    whole[57:61] = len(made).to_bytes(4, "big")
    return seal_batch(whole)


def joined(drawn: Any, body_changes: Any = ()) -> bytes:
    parts: list[bytes] = []
    base = 0
    for made, is_append_time in drawn:
        # UpsertSettings go to the last batch: there they meet all that came before.
        is_last = len(parts) == len(drawn) - 1
        parts.append(
            batch(
                made,
                base,
                is_append_time=is_append_time,
                body_changes=body_changes if is_last else (),
            )
        )
        base = read_header(parts[-1]).next_offset
    return b"".join(parts)


def outcome(kind: str, found: BatchBodies, end: int, include_headers: bool) -> Any:
    with mock.patch.object(record_decoder, "KIND", kind):
        try:
            planned = OffsetRange(topic="t", partition=3, start=0, end=end)
            return record_batch(found, planned, include_headers)
        except BatchFormatError as error:
            return str(error)


def compare(found: BatchBodies, end: int, include_headers: bool) -> None:
    by_numpy = outcome("numpy", found, end, include_headers)
    assert outcome("compiled", found, end, include_headers) == by_numpy
    bodies = [body for body in found.bodies if body.header.record_count]
    rows = compiled.decode(found.data, compiled.packed(bodies), found.start, end, include_headers)
    # It must not leave to numpy what is sound, nor accept what is not.
    assert (rows is None) == isinstance(by_numpy, str)


@given(batches, changes, OFFSETS, OFFSETS, st.booleans())
def test_both_decoders_make_the_same_of_sound_and_of_changed_records(
    drawn: Any, body_changes: Any, start: int, length: int, include_headers: bool
) -> None:
    data = memoryview(joined(drawn, body_changes))
    end = start + length
    for found in readable_bodies(data, whole_batches(data), [], start=start, end=end):
        compare(found, end, include_headers)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 4), st.booleans())
@example(b"\x0c\0\0\0\1\1\0", 1, True)
@example(b"\x0e\0\0\0\1\1\x80\0", 1, True)  # A count of headers that is longer than it need be.
@example(b"\x10\0\0\0\1\1\x80\0\0", 1, True)  # … with a byte behind it.
@example(b"\x1e\0" + b"\xff" * 9 + b"\1\0\1\1\0", 1, True)  # A number of 64 bits …
@example(b"\x1e\0" + b"\xff" * 9 + b"\2\0\1\1\0", 1, True)  # … and of 65.
@example(b"\x26\0\0\0\1" + b"\xfe" + b"\xff" * 8 + b"\1" + b"\0" * 5, 1, True)  # Length 2**63 - 1.
def test_both_decoders_make_the_same_of_any_bytes(
    body: bytes, count: int, include_headers: bool
) -> None:
    header = read_header(batch([Made(1, 0, None, None, [])] * count, 0, is_append_time=False))
    found = BatchBodies(memoryview(body), [BatchBody(0, len(body), header)], 0)
    compare(found, END, include_headers)


@given(batches, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2), OFFSETS)
def test_batches_are_found_as_they_are_without_it_or_left_alone(
    drawn: Any, changes: Any, start: int
) -> None:
    whole = bytearray(joined(drawn))
    for position, byte in changes:
        whole[position % len(whole)] = byte
    cut = memoryview(whole)[: len(whole) - len(changes)]
    end = start + 20
    found = record_decoder.scan(cut, start, end)
    if found is None:
        assert changes or not whole_batches(cut, end)
        return
    batches = whole_batches(cut, end)
    listed = list(readable_bodies(cut, batches, [], start=start, end=end))
    bodies = [body for part in listed for body in part.bodies if body.header.record_count]
    assert found == (batches[-1].header.next_offset, compiled.packed(bodies))


@pytest.mark.parametrize("change", ["codec", "transactional", "control", "checksum", "magic"])
def test_batches_out_of_the_ordinary_are_left_to_those_who_know(change: str) -> None:
    made = Record(Offset(0), TimestampMs(NOW), b"k", b"v", [])
    data = bytearray(
        build_batch(
            [made],
            codec=Codec.GZIP if change == "codec" else Codec.NONE,
            transactional=change == "transactional",
            control=change == "control",
        )
    )
    assert record_decoder.scan(memoryview(build_batch([made])), 0, END) is not None
    if change == "checksum":
        data[-1] ^= 1
    elif change == "magic":
        data[16] = 1
    assert record_decoder.scan(memoryview(data), 0, END) is None
    assert record_decoder.scan(memoryview(b""), 0, END) is None


def test_damage_that_the_scan_cannot_see_is_reported() -> None:
    good = batch([Made(1, 0, b"k", b"v", [])], 0, is_append_time=False)
    bad = batch([Made(1, 0, b"k", b"v", [])], 1, is_append_time=False, body_changes=[(0, 0x7E)])
    data = memoryview(good + bad)
    scanned = record_decoder.scan(data, 0, END)
    assert scanned is not None
    assert outcome("compiled", BatchBodies(data, [], 0, scanned[1]), END, False) == (
        "record of 63 bytes, 8 left"
    )


def test_a_batch_outside_of_the_data_is_never_read() -> None:
    header = read_header(batch([Made(1, 0, None, None, [])], 0, is_append_time=False))
    for start, end in ((0, 9), (-1, 8), (9, 9), (5, 4)):
        with pytest.raises(IndexError):
            compiled.decode(
                memoryview(bytes(8)),
                compiled.packed([BatchBody(start, end, header)]),
                0,
                END,
                False,
            )


def test_the_environment_takes_numpy_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_SPARK_DECODER", "numpy")
    try:
        assert importlib.reload(record_decoder).KIND == "numpy"
    finally:
        monkeypatch.delenv("MOLDAU_SPARK_DECODER")
        assert importlib.reload(record_decoder).KIND == "compiled"
