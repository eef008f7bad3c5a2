"""/api/v1/topics/{topic}/records: reads a partition by offset or timestamp."""

from typing import Final, cast, get_args

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.session import Session
from moldau.api.types import (
    EARLIEST,
    INT_MAX,
    LATEST,
    LONG_MAX,
    Topic,
)
from moldau.edge.http.methods import by_method
from moldau.edge.http.produce import store
from moldau.edge.http.query_parameters import (
    bad_parameter,
    page_size,
    parse_int,
    read_bytes,
    read_bytes_once,
    read_int,
    read_text,
)
from moldau.edge.http.record_json import (
    Encoding,
    HeaderEncoding,
    RecordSelection,
    RecordShown,
    show_all,
)
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of

WAIT_MS_MAX: Final = 10_000
SCANS_MAX: Final = 8
"""Pages that one request scans while a filter matches nothing."""

HEADERS_MAX: Final = 10
"""Header filters per request."""

FILTER_PARAMETERS: Final = (
    "key_encoding",
    "value_encoding",
    "header_encoding",
    "key",
    "contains",
    "header",
)
POSITION_PARAMETERS: Final = ("partition", "offset", "time")


class RecordsShown(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    records: list[RecordShown]
    next_offset: int
    """Where to continue."""
    start_offset: int
    end_offset: int


def routes() -> list[Route]:
    async def read(request: Request) -> Response:
        check_query(request, *POSITION_PARAMETERS, *FILTER_PARAMETERS, "limit", "wait_ms")
        limit, selection = page_size(request), read_selection(request)
        wait_ms = read_int(request, "wait_ms", least=0, most=WAIT_MS_MAX) or 0
        session = session_of(request)
        topic = session.topics.get(request.path_params["topic"])
        partition = read_partition(request, topic)
        leader = session.cluster.remote_leader(topic, partition)
        if leader is not None:
            return relay_to(request, leader)
        offset = read_offset(session, request, topic, partition, by_default=EARLIEST)
        for _ in range(SCANS_MAX):
            page = await session.fetch.read_page(
                topic.name,
                partition,
                offset,
                limit=limit,
                wants=selection.matches,
                wait_ms_max=wait_ms,
            )
            # Wait only once, not with every page that a filter skips.
            wait_ms = 0
            moved, offset = page.next_offset > offset, page.next_offset
            if page.records or not moved:
                break
        return respond(
            RecordsShown(
                topic=topic.name,
                partition=partition,
                records=await show_all(page.records, selection),
                next_offset=page.next_offset,
                start_offset=page.start_offset,
                end_offset=page.end_offset,
            )
        )

    return [by_method("/api/v1/topics/{topic}/records", GET=read, POST=store)]


def read_partition(request: Request, topic: Topic) -> int:
    """Raises RefusedError."""
    partition = read_int(request, "partition", least=0, most=INT_MAX)
    if partition is None:
        if len(topic.partitions) > 1:
            raise bad_parameter(
                "partition", f"is required: the topic has {len(topic.partitions)} partitions"
            )
        return 0
    return partition


def read_offset(
    session: Session, request: Request, topic: Topic, partition: int, *, by_default: int
) -> int:
    """The start offset: as given, by timestamp, or either end. Raises RefusedError."""
    text, time = read_text(request, "offset"), read_int(request, "time", least=0, most=LONG_MAX)
    if text is not None and time is not None:
        raise bad_parameter("time", "cannot be combined with 'offset'")
    timestamp = by_default
    if time is not None:
        timestamp = time
    elif text in ("earliest", "latest"):
        timestamp = EARLIEST if text == "earliest" else LATEST
    elif text is not None:
        offset = parse_int(text)
        if offset is None or not 0 <= offset <= LONG_MAX:
            raise bad_parameter("offset", "must be earliest, latest, or a number >= 0")
        return offset
    return session.offsets.at(topic.name, partition, timestamp)


def read_selection(request: Request) -> RecordSelection:
    """Raises RefusedError."""
    headers = []
    wanted = read_bytes(request, "header")
    if len(wanted) > HEADERS_MAX:
        # Each is searched for in every record.
        raise bad_parameter("header", f"may be given at most {HEADERS_MAX} times")
    for given in wanted:
        name, colon, value = given.partition(b":")
        headers.append((name.decode("utf-8", "surrogateescape"), value if colon else None))
    return RecordSelection(
        key_encoding=_encoding(request, "key_encoding"),
        value_encoding=_encoding(request, "value_encoding"),
        header_encoding=_header_encoding(request),
        key=read_bytes_once(request, "key"),
        contains=read_bytes_once(request, "contains"),
        headers=tuple(headers),
    )


def _encoding(request: Request, name: str) -> Encoding:
    text = read_text(request, name)
    if text is None:
        return "text"
    if text not in get_args(Encoding):
        raise bad_parameter(name, "must be text, json or base64")
    return cast(Encoding, text)


def _header_encoding(request: Request) -> HeaderEncoding:
    text = read_text(request, "header_encoding")
    if text is None:
        return "text"
    if text not in get_args(HeaderEncoding):
        raise bad_parameter("header_encoding", "must be text or base64")
    return cast(HeaderEncoding, text)
