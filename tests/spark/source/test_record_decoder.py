"""Records as Arrow columns: the same as read one by one, and nonsense is refused, not returned."""

import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import HEADER_BYTES, BatchFormatError, seal_batch
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch, read_records
from moldau.spark.source import record_decoder
from moldau.spark.source.fetched_batches import BatchBodies, readable_bodies, whole_batches
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.record_decoder import record_batch

NOW = 1_700_000_000_000
END = 1 << 62


def record(
    value: bytes | None = b"v",
    key: bytes | None = b"k",
    timestamp: int = NOW,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> Record:
    return Record(Offset(0), TimestampMs(timestamp), key, value, headers or [])


def columns(data: bytes, start: int = 0, end: int = END, *, include_headers: bool = True) -> Any:
    fetched = memoryview(data)
    parts = list(readable_bodies(fetched, whole_batches(fetched), [], start=start, end=end))
    found = parts[0] if parts else BatchBodies(fetched, [], start)
    made = []
    for kind in {"numpy", record_decoder.KIND}:
        with mock.patch.object(record_decoder, "KIND", kind):
            planned = OffsetRange(topic="t", partition=3, start=start, end=end)
            made.append(record_batch(found, planned, include_headers))
        made[-1].validate(full=True)
    assert made[0] == made[-1]
    return made[0]


def one_by_one(batches: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the columns must say, read by the code that makes an object of each record."""
    return [
        {
            "key": found.key,
            "value": found.value,
            "topic": "t",
            "partition": 3,
            "offset": found.offset,
            "timestampType": 0,
            "headers": [{"key": k, "value": v} for k, v in found.headers] or None,
        }
        for batch in batches
        for found in read_records(batch)
    ]


def without_time(rows: Any) -> list[dict[str, Any]]:
    left: list[dict[str, Any]] = rows.drop_columns(["timestamp"]).to_pylist()
    return left


def times(rows: Any) -> list[int]:
    return [moment // 1000 for moment in rows["timestamp"].cast("int64").to_pylist()]


sizes = st.sampled_from([0, 1, 5, 62, 63, 64, 100, 127, 128, 300, 8191, 9000])
contents = st.one_of(st.none(), st.builds(bytes, sizes))
header = st.tuples(st.text(max_size=70), st.one_of(st.none(), st.binary(max_size=70)))
records = st.builds(
    record,
    contents,
    contents,
    st.integers(NOW - 100_000, NOW + 10_000_000_000),
    st.lists(header, max_size=3),
)


@given(st.lists(st.lists(records, min_size=1, max_size=40), min_size=1, max_size=4))
def test_columns_are_what_the_records_are(drawn: list[list[Record]]) -> None:
    batches, base = [], 0
    for part in drawn:
        batches.append(build_batch(part, base_offset=Offset(base)))
        base += len(part)
    rows = columns(b"".join(batches))
    assert without_time(rows) == one_by_one(batches)
    assert times(rows) == [found.timestamp for part in drawn for found in part]


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_read(codec: Codec) -> None:
    first = build_batch([record(b"a" * n) for n in range(200)], codec=codec)
    second = build_batch([record(b"plain")], base_offset=Offset(200))
    rows = columns(first + second)
    assert without_time(rows) == one_by_one([first, second])


@pytest.mark.parametrize("shape", ["equal", "varied", "steps"])
def test_long_batches_are_read_whether_records_are_alike_or_not(shape: str) -> None:
    rng = random.Random(7)
    lengths = {
        "equal": [100] * 9000,
        "varied": [rng.randrange(300) for _ in range(9000)],
        "steps": [20 + number // 500 for number in range(9000)],
    }[shape]
    batch = build_batch([record(b"x" * n, timestamp=NOW + n) for n in lengths])
    rows = columns(batch)
    assert [len(value) for value in rows["value"].to_pylist()] == lengths
    assert rows["offset"].to_pylist() == list(range(9000))
    assert times(rows) == [NOW + n for n in lengths]


def test_offsets_outside_of_the_range_are_left_out() -> None:
    data = b"".join(
        build_batch([record(b"%d" % n) for n in range(base, base + 10)], base_offset=Offset(base))
        for base in (0, 10, 20, 30)
    )
    rows = columns(data, 13, 27)
    assert rows["offset"].to_pylist() == list(range(13, 27))
    assert rows["value"].to_pylist() == [b"%d" % n for n in range(13, 27)]
    assert columns(data, 40, 50).num_rows == 0
    assert columns(data, 5, 5).num_rows == 0


def test_the_time_of_the_broker_counts_for_every_record() -> None:
    stamped = build_batch([record(), record(timestamp=NOW + 5)], append_time=TimestampMs(NOW + 99))
    own = build_batch([record(timestamp=NOW + 7)], base_offset=Offset(2))
    rows = columns(stamped + own)
    assert times(rows) == [NOW + 99, NOW + 99, NOW + 7]
    assert rows["timestampType"].to_pylist() == [1, 1, 0]


def test_a_time_that_does_not_fit_is_the_last_one_that_does() -> None:
    last = (2**63 - 1) // 1000
    for asked, found in ((2**63 - 1, last), (last, last), (last + 1, last), (-(2**62), -last)):
        rows = columns(build_batch([record(timestamp=asked)]))
        assert times(rows) == [found]
    assert times(columns(build_batch([record(timestamp=-1)]))) == [-1]


def test_headers_are_left_out_unless_asked_for() -> None:
    batch = build_batch([record(headers=[("a", b"1")]), record()])
    assert "headers" not in columns(batch, include_headers=False).schema.names
    assert columns(batch)["headers"].to_pylist() == [[{"key": "a", "value": b"1"}], None]


def test_a_header_key_that_is_no_text_is_made_readable() -> None:
    rows = columns(build_batch([record(headers=[("\udcff", b"1")]), record()]))
    assert rows["headers"].to_pylist()[0][0]["key"] == "\ufffd"


def damaged(position: int, number: int) -> bytes:
    """A batch of one small record in which a byte was changed before its checksum was made."""
    batch = bytearray(build_batch([record(b"value", b"key", headers=[("h", b"x")])]))
    batch[HEADER_BYTES + position] = number
    return bytes(seal_batch(batch))


@pytest.mark.parametrize(
    ("position", "number"),
    [
        (0, 0x00),  # the record's length: nothing
        (0, 0x01),  # … less than nothing
        (0, 0x7E),  # … more than there is
        (0, 0xFF),  # … a number that goes on and on
        (3, 0x02),  # the offset's delta: beyond the batch
        (3, 0x01),  # … below it
        (4, 0x03),  # the key's length: -2
        (4, 0x7E),  # … past the record
        (8, 0x03),  # the value's length: -2
        (8, 0x7E),  # … past the record
        (14, 0x00),  # no headers, but bytes are left
        (14, 0x7E),  # more headers than bytes
        (14, 0x01),  # -1 headers
        (15, 0x01),  # a header without a key
        (15, 0x7E),  # … whose key is too long
        (17, 0x7E),  # … whose value is too long
        (17, 0x00),  # … whose value leaves bytes over
    ],
)
def test_a_record_that_does_not_add_up_is_refused(position: int, number: int) -> None:
    with pytest.raises(BatchFormatError):
        columns(damaged(position, number))


def test_offsets_that_do_not_rise_are_refused() -> None:
    batch = bytearray(build_batch([record(b""), record(b"")]))
    batch[-5] = 0  # The second record's delta is that of the first.
    with pytest.raises(BatchFormatError, match="do not increase"):
        columns(bytes(seal_batch(batch)))
