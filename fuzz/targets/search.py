"""What clients send for searches, cursors and filters, and the batches that searches look into."""

from typing import Final

from fuzz.parts import join, pair
from fuzz.target import KIBIBYTE, Target, check
from moldau.api.search.cursor import decode_cursor, encode_cursor
from moldau.api.search.merge import Row
from moldau.data.search.filters import JsonTerm, Matcher, SearchFilter
from moldau.data.search.scan import Scan, Stored
from moldau.model.errors import RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import HEADER_BYTES, build_raw_batch, read_header
from moldau.records.record import Record, build_batch

_ID: Final = b"i" * 16
_ASKED: Final = b"a" * 12
_COUNT_MAX: Final = 5
_EMPTY: Final = build_batch([Record(Offset(0), TimestampMs(0), None, b"", [])])
_ROWS: Final = [Row(0, 500, 0, None), Row(3, 9, 2, 1_700_000_000_000)]


def _cursor(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    rows = decode_cursor(text, _ID, _ASKED, 8, newest=True)
    again = encode_cursor(_ID, _ASKED, rows)
    check(decode_cursor(again, _ID, _ASKED, 8, newest=True) == rows, "a cursor changes")


def _term(data: bytes) -> None:
    """A match is never in a batch that has no needle."""
    text, value = pair(data)
    term = JsonTerm.parse(text.decode(errors="replace"))
    if term is None:
        return
    matcher = Matcher(SearchFilter(json=[term]))
    if matcher.matches(Record(Offset(0), TimestampMs(0), None, value, [])):
        check(matcher.needle_in(value) is not None, "a match is left out")


def _scan(data: bytes) -> None:
    if not data:
        return
    count = data[0] % _COUNT_MAX + 1
    header = read_header(_EMPTY).replaced(record_count=count, last_offset_delta=2 * count)
    batch = build_raw_batch(header, data[1:])
    found = [_hits(batch, newest=newest) for newest in (True, False)]
    check(found[0] == found[1][::-1], "the two directions find different messages")


def _hits(data: bytes, *, newest: bool) -> list[int]:
    last = (1 << 63) - 1
    scan = Scan(
        Matcher(SearchFilter()),
        newest=newest,
        position=last if newest else 0,
        stop=0 if newest else last,
        reached=None,
        limit=1 << 20,
        bytes_max=1 << 30,
        value_max=100,
        is_over=lambda: False,
    )
    scan.run(Stored(data, ()))
    return [hit.offset for hit in scan.hits]


def _body() -> bytes:
    records = [Record(Offset(0), TimestampMs(7), b"k", b"value", [("h", b"1")])] * 3
    return b"\x02" + build_batch(records)[HEADER_BYTES:]


TARGETS: Final = [
    Target(
        name="search-cursors",
        about="cursors of searches",
        run=_cursor,
        allowed=(RefusedError,),
        seeds=lambda: {"rows": encode_cursor(_ID, _ASKED, _ROWS).encode()},
        bytes_max=512,
    ),
    Target(
        name="search-terms",
        about="JSON paths of searches",
        run=_term,
        allowed=(),
        seeds=lambda: {
            "number": join([b"a.b[0]=12", b'{"a":{"b":[12]}}']),
            "text": join([b"a=x y", b'{"a":"x\\u0020y"}']),
        },
        bytes_max=KIBIBYTE,
    ),
    Target(
        name="search-batches",
        about="records of stored batches, forwards and backwards",
        run=_scan,
        allowed=(),
        seeds=lambda: {"records": _body()},
        bytes_max=4 * KIBIBYTE,
    ),
]
