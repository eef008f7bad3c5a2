"""The scan of batches: bounds, what cannot be read, and what is shown of large messages."""

from collections.abc import Callable

import pytest

from moldau.data import stored_batches
from moldau.data.search import scan as scans
from moldau.data.search.filters import JSON_BYTES_MAX, JsonTerm, Matcher, SearchFilter
from moldau.data.search.scan import Scan, Stored
from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Headers, Record, build_batch


def batch(first: int, *values: bytes | None, codec: Codec = Codec.NONE, **more: Headers) -> bytes:
    headers = more.get("headers", [])
    records = [Record(Offset(0), TimestampMs(7), b"key", value, headers) for value in values]
    return build_batch(records, base_offset=Offset(first), codec=codec)


def scan(
    data: bytes,
    wanted: SearchFilter | None = None,
    *,
    newest: bool = False,
    is_over: Callable[[], bool] = lambda: False,
    **more: int,
) -> Scan:
    made = Scan(
        Matcher(wanted or SearchFilter()),
        newest=newest,
        position=more.get("position", 1000 if newest else 0),
        stop=more.get("stop", 0 if newest else 1000),
        reached=None,
        limit=more.get("limit", 1000),
        bytes_max=more.get("bytes_max", 1 << 20),
        value_max=more.get("value_max", 1 << 16),
        is_over=is_over,
    )
    made.run(Stored(data, ()))
    return made


def offsets(made: Scan) -> list[int]:
    return [hit.offset for hit in made.hits]


@pytest.mark.parametrize("newest", [True, False])
def test_it_ends_at_its_limit_inside_a_batch_and_goes_on_there(newest: bool) -> None:
    data = batch(0, b"a", b"b", b"c") + batch(3, b"d", b"e", codec=Codec.ZSTD)
    expected = [4, 3, 2, 1, 0] if newest else [0, 1, 2, 3, 4]
    found: list[int] = []
    position = 1000 if newest else 0
    while len(found) < 5:
        made = scan(data, newest=newest, position=position, limit=2)
        assert len(made.hits) <= 2
        found += offsets(made)
        position = made.position
    assert found == expected


@pytest.mark.parametrize("newest", [True, False])
def test_it_ends_inside_a_batch_when_its_time_is_over_and_goes_on_there(newest: bool) -> None:
    data = batch(0, b"a", b"b", b"c", codec=Codec.ZSTD)
    found: list[int] = []
    position = 1000 if newest else 0
    for _ in range(3):
        made = scan(data, newest=newest, position=position, is_over=lambda: True)
        assert len(made.hits) == 1
        found += offsets(made)
        position = made.position
    assert found == ([2, 1, 0] if newest else [0, 1, 2])
    assert scan(data, newest=newest, position=position, is_over=lambda: True).hits == []


def test_json_that_is_too_large_to_decode_is_left_out_and_named() -> None:
    large = b'{"a":1,"b":"%b"}' % (b"x" * JSON_BYTES_MAX)
    other = b'{"b":"%b"}' % (b"x" * JSON_BYTES_MAX)
    data = batch(0, b'{"a":1}', large, other, b'{"a":1}', codec=Codec.ZSTD)
    made = scan(data, SearchFilter(json=[JsonTerm(["a"], "1")]))
    assert offsets(made) == [0, 3]
    # The other one has no 1: it cannot match.
    ((first, last, reason),) = [(one.first, one.last, one.reason) for one in made.unreadable]
    assert (first, last) == (1, 1)
    assert f"{len(large)} bytes" in reason
    # Other filters decide first.
    wanted = SearchFilter(key=b"nobody", json=[JsonTerm(["a"], "1")])
    assert scan(data, wanted).unreadable == []


def test_bytes_are_bounded_and_the_last_may_exceed_them() -> None:
    data = batch(0, b"x" * 100, b"y" * 100, b"z" * 100)
    assert offsets(scan(data, bytes_max=150)) == [0, 1]
    assert offsets(scan(data, bytes_max=1)) == [0]


@pytest.mark.parametrize("newest", [True, False])
def test_what_cannot_be_decoded_is_left_out_and_named(newest: bool) -> None:
    bad = bytearray(batch(2, b"c", b"d"))
    bad[-1] ^= 1
    data = batch(0, b"a", b"b") + bytes(bad) + batch(4, b"e")
    made = scan(data, newest=newest)
    assert sorted(offsets(made)) == [0, 1, 4]
    ((first, last, reason),) = [(one.first, one.last, one.reason) for one in made.unreadable]
    assert (first, last) == (2, 3)
    assert "checksum" in reason


def test_a_batch_that_is_too_large_when_decompressed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scans, "BATCH_BYTES_MAX", 1000)
    monkeypatch.setattr(scans, "BATCH_RECORDS_MAX", 2)
    assert stored_batches.BATCH_BYTES_MAX > 1000
    data = batch(0, b"x" * 2000, codec=Codec.GZIP) + batch(1, b"", b"", b"") + batch(4, b"a")
    made = scan(data)
    assert offsets(made) == [4]
    assert [(one.first, one.last) for one in made.unreadable] == [(0, 0), (1, 3)]
    assert "1000" in made.unreadable[0].reason
    assert "limit is 2" in made.unreadable[1].reason


def test_so_much_that_cannot_be_read_ends_a_piece() -> None:
    bad = bytearray(batch(0, b"a"))
    bad[-1] ^= 1
    data = b""
    for number in range(scans.UNREADABLE_MAX + 5):
        bad[0:8] = number.to_bytes(8, "big")
        data += bytes(bad)
    made = scan(data)
    assert len(made.unreadable) == scans.UNREADABLE_MAX == made.position


def test_large_messages_are_cut() -> None:
    headers: Headers = [("a", b"1"), ("b", b"x" * scans.HEADERS_BYTES_MAX)]
    ((_, hit),) = enumerate(scan(batch(0, b"v" * 100, headers=headers), value_max=10).hits)
    assert (hit.value, hit.value_bytes, hit.is_cut) == (b"v" * 10, 100, True)
    assert hit.headers == [(b"a", b"1")]
    (whole,) = scan(batch(0, b"v" * 10), value_max=10).hits
    assert (whole.value, whole.value_bytes, whole.is_cut) == (b"v" * 10, 10, False)
    (tombstone,) = scan(batch(0, None)).hits
    assert (tombstone.value, tombstone.value_bytes) == (None, 0)


def test_a_needle_that_spans_two_records_is_no_match() -> None:
    # The bytes between two records: header count, length, attributes, times, key.
    data = batch(0, b"ab", b"cd", b"ab", b"xbcx")
    assert offsets(scan(data, SearchFilter(contains=b"b"))) == [0, 2, 3]
    assert offsets(scan(data, SearchFilter(contains=b"bc"))) == [3]
    assert offsets(scan(data, SearchFilter(contains=b""))) == [0, 1, 2, 3]


def test_what_is_not_looked_at_is_counted() -> None:
    data = batch(0, b"a", b"b", b"c") + batch(3, b"d", b"e")
    made = scan(data, limit=1)
    assert (offsets(made), made.position) == ([0], 1)
    assert made.count(Stored(data, ())) == 4
