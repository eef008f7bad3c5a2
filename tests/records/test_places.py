"""Records found by place are those that the whole batch has."""

import pytest
from effort import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import BatchFormatError, read_header
from moldau.records.places import find_places, read_place
from moldau.records.record import Record, build_batch, open_body, read_records

content = st.none() | st.binary(max_size=5) | st.integers(0, 20_000).map(lambda size: b"v" * size)
headers = st.lists(st.tuples(st.text(max_size=3), content), max_size=2)
records = st.builds(
    lambda time, key, value, headers: Record(Offset(0), TimestampMs(time), key, value, headers),
    st.integers(0, 1 << 40) | st.integers(0, 300),
    content,
    content,
    headers,
)


@settings(max_examples=EXAMPLES * 4)
@given(
    st.lists(records, min_size=1, max_size=8), st.integers(1, 70), st.binary(max_size=2), st.data()
)
def test_all_records_in_range_with_the_needle_are_found(
    some: list[Record], times: int, needle: bytes, data: st.DataObject
) -> None:
    batch = build_batch(some * times, base_offset=Offset(1000))
    header = read_header(batch)
    body = open_body(batch, header)
    last = 1000 + len(some) * times
    first = data.draw(st.integers(990, last))
    end = data.draw(st.integers(first, last + 10))
    wanted = [one for one in read_records(batch) if first <= one.offset <= end]
    found = [read_place(body, place) for place in find_places(header, body, needle, first, end)]
    if not needle:
        assert found == wanted
    # With a needle, at least those that have it in their content.
    assert {one.offset for one in found} >= {
        one.offset for one in wanted if needle in (one.value or b"") or needle in (one.key or b"")
    }
    assert [one for one in wanted if one in found] == found


@settings(max_examples=EXAMPLES * 4)
@given(st.binary(max_size=60), st.integers(1, 5))
def test_any_bytes_are_read_or_refused(junk: bytes, count: int) -> None:
    header = read_header(build_batch([Record(Offset(0), TimestampMs(0), None, b"", [])]))
    header = header.replaced(record_count=count, last_offset_delta=count - 1)
    try:
        for place in find_places(header, junk, b"", 0, 100):
            assert place.end <= len(junk)
            read_place(junk, place)
    except BatchFormatError:
        pass


def test_a_field_that_runs_into_the_next_record_is_refused() -> None:
    body = bytearray()
    batch = build_batch([Record(Offset(0), TimestampMs(0), b"abc", b"de", [])] * 2)
    header = read_header(batch)
    body[:] = open_body(batch, header)
    # The length of the first key.
    body[4] += 20
    first, second = find_places(header, bytes(body), b"", 0, 9)
    with pytest.raises(BatchFormatError):
        read_place(bytes(body), first)
    assert read_place(bytes(body), second).key == b"abc"
