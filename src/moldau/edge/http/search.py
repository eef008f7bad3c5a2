"""GET /api/v1/topics/{topic}/search: finds messages in all partitions of a topic, page by page."""

from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.search.types import JsonTerm, Search, SearchFilter, Start
from moldau.api.types import INT_MAX, LONG_MAX
from moldau.edge.http.message_json import VALUE_MAX, VALUE_MAX_MAX, Message, show_hits
from moldau.edge.http.query_parameters import (
    bad_parameter,
    page_size,
    parse_int,
    read_flag,
    read_int,
    read_text,
)
from moldau.edge.http.record_json import RecordSelection
from moldau.edge.http.records import FILTER_PARAMETERS, read_selection
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of

JSON_TERMS_MAX: Final = 10
PARTITIONS_NAMED_MAX: Final = 256

MESSAGE_FILTERS: Final = (*FILTER_PARAMETERS, "json", "partition", "markers", "value_max")
"""Of searches and live views."""


class SearchedRange(Struct, frozen=True, kw_only=True, rename={"first": "from", "end": "to"}):
    """Offsets, without the last one."""

    partition: int
    first: int
    end: int


class Searched(Struct, frozen=True, kw_only=True):
    records: int
    """By offsets."""
    bytes: int
    """As stored."""
    ranges: list[SearchedRange]
    gone: int
    """Messages that retention removed before they were searched."""


class MessagesUnreadable(Struct, frozen=True, kw_only=True):
    """Messages that were left out: they cannot be decoded, or are too large for it."""

    partition: int
    first_offset: int
    last_offset: int
    reason: str


class SearchPage(Struct, frozen=True, kw_only=True):
    records: list[Message]
    searched: Searched
    unreadable: list[MessagesUnreadable]
    left_records: int
    cursor: str | None
    """Pass it with the same filters to go on; null: all was searched."""


def read_filter(request: Request) -> tuple[SearchFilter, RecordSelection]:
    """What is wanted, and how it is encoded. Raises RefusedError."""
    selection = read_selection(request)
    terms = []
    texts = request.query_params.getlist("json")
    if len(texts) > JSON_TERMS_MAX:
        raise bad_parameter("json", f"may be given at most {JSON_TERMS_MAX} times")
    for text in texts:
        term = JsonTerm.parse(text)
        if term is None:
            raise bad_parameter(
                "json",
                """must be a path like user.items[0]."odd name", or path=value: """
                "no other comparison is known",
            )
        terms.append(term)
    wanted = SearchFilter(
        key=selection.key,
        contains=selection.contains,
        headers=[
            (name.encode("utf-8", "surrogateescape"), value) for name, value in selection.headers
        ],
        json=terms,
        markers=read_flag(request, "markers"),
    )
    return wanted, selection


def read_partitions(request: Request) -> list[int] | None:
    """Those that are named, in order; None: all. Raises RefusedError."""
    found = set()
    for text in request.query_params.getlist("partition"):
        number = parse_int(text)
        if number is None or not 0 <= number <= INT_MAX:
            raise bad_parameter("partition", f"must be a number from 0 to {INT_MAX}")
        found.add(number)
    if len(found) > PARTITIONS_NAMED_MAX:
        raise bad_parameter("partition", f"may name at most {PARTITIONS_NAMED_MAX} partitions")
    return sorted(found) or None


def read_value_max(request: Request) -> int:
    """Raises RefusedError."""
    value_max = read_int(request, "value_max", least=0, most=VALUE_MAX_MAX)
    return VALUE_MAX if value_max is None else value_max


def _read_start(request: Request) -> Start:
    """Raises RefusedError."""
    offset = read_int(request, "offset", least=0, most=LONG_MAX - 1)
    time = read_int(request, "time", least=0, most=LONG_MAX - 1)
    if offset is not None and time is not None:
        raise bad_parameter("time", "cannot be combined with 'offset'")
    return Start(offset, time)


def routes() -> list[Route]:
    async def search(request: Request) -> Response:
        check_query(request, "direction", "offset", "time", "limit", "cursor", *MESSAGE_FILTERS)
        direction = read_text(request, "direction")
        if direction not in (None, "newest", "oldest"):
            raise bad_parameter("direction", "must be newest or oldest")
        wanted, selection = read_filter(request)
        search = Search(
            newest=direction != "oldest",
            start=_read_start(request),
            wanted=wanted,
            partitions=read_partitions(request),
            limit=page_size(request),
            value_max=read_value_max(request),
            cursor=read_text(request, "cursor"),
        )
        session = session_of(request)
        topic = session.topics.get(request.path_params["topic"])
        found = await session.search.page(topic, search, request.is_disconnected)
        return respond(
            SearchPage(
                records=await show_hits(found.hits, selection),
                searched=Searched(
                    records=found.records,
                    bytes=found.bytes_searched,
                    ranges=[
                        SearchedRange(partition=each.partition, first=each.first, end=each.end)
                        for each in found.ranges
                    ],
                    gone=found.gone,
                ),
                unreadable=[
                    MessagesUnreadable(
                        partition=partition,
                        first_offset=one.first,
                        last_offset=one.last,
                        reason=one.reason,
                    )
                    for partition, one in found.unreadable
                ],
                left_records=found.left,
                cursor=found.cursor,
            )
        )

    return [Route("/api/v1/topics/{topic}/search", search, methods=["GET"])]
