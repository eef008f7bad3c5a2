"""Owns /api/v1/topics/{topic}/records: reading a partition by offset or by time."""

from typing import Final, cast, get_args

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.broker import Broker
from moldau.api.lookup import find_topic, remote_leader
from moldau.data.offsets import EARLIEST, LATEST
from moldau.data.record_reader import offset_at, read_page
from moldau.edge.http.methods import by_method
from moldau.edge.http.produce import ProduceHandler
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
from moldau.edge.http.redirect import redirect_to
from moldau.edge.http.responses import answer, check_query
from moldau.metadata.config_types import INT_MAX, LONG_MAX
from moldau.metadata.image import Topic

WAIT_MS_MAX: Final = 10_000
SCANS_MAX: Final = 8
"""Reads of one request, while a filter finds nothing."""

HEADERS_MAX: Final = 10
"""Headers that a filter may ask for."""

CHOICE: Final = (
    "key_encoding",
    "value_encoding",
    "header_encoding",
    "key",
    "contains",
    "header",
)
PLACE: Final = ("partition", "offset", "time")


class RecordsShown(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    records: list[RecordShown]
    next_offset: int
    """Where to go on."""
    start_offset: int
    end_offset: int


def routes(broker: Broker) -> list[Route]:
    door = ProduceHandler(broker)

    async def read(request: Request) -> Response:
        check_query(request, *PLACE, *CHOICE, "limit", "wait_ms")
        limit, chosen = page_size(request), read_choice(request)
        wait_ms = read_int(request, "wait_ms", least=0, most=WAIT_MS_MAX) or 0
        topic = find_topic(broker, request.path_params["topic"])
        partition = read_partition(request, topic)
        leader = remote_leader(broker, topic, partition)
        if leader is not None:
            return redirect_to(broker, leader, request)
        offset = read_offset(broker, request, topic, partition, by_default=EARLIEST)
        for _ in range(SCANS_MAX):
            page = await read_page(
                broker.fetch,
                topic.name,
                partition,
                offset,
                limit=limit,
                wants=chosen.wants,
                wait_ms_max=wait_ms,
            )
            # Once: with each read of a filter that finds nothing, it would be many times as long.
            wait_ms = 0
            moved, offset = page.next_offset > offset, page.next_offset
            if page.records or not moved:
                break
        return answer(
            RecordsShown(
                topic=topic.name,
                partition=partition,
                records=await show_all(page.records, chosen),
                next_offset=page.next_offset,
                start_offset=page.start_offset,
                end_offset=page.end_offset,
            )
        )

    return [by_method("/api/v1/topics/{topic}/records", GET=read, POST=door.store)]


def read_partition(request: Request, topic: Topic) -> int:
    """Raises RefusedError."""
    partition = read_int(request, "partition", least=0, most=INT_MAX)
    if partition is None:
        if len(topic.partitions) > 1:
            raise bad_parameter("partition", f"is needed: there are {len(topic.partitions)}")
        return 0
    return partition


def read_offset(
    broker: Broker, request: Request, topic: Topic, partition: int, *, by_default: int
) -> int:
    """Where to begin: at an offset, at a time, or at either end. Raises RefusedError."""
    text, time = read_text(request, "offset"), read_int(request, "time", least=0, most=LONG_MAX)
    if text is not None and time is not None:
        raise bad_parameter("time", "and 'offset' exclude each other")
    place = by_default
    if time is not None:
        place = time
    elif text in ("earliest", "latest"):
        place = EARLIEST if text == "earliest" else LATEST
    elif text is not None:
        offset = parse_int(text)
        if offset is None or not 0 <= offset <= LONG_MAX:
            raise bad_parameter("offset", "must be earliest, latest, or a number from 0 on")
        return offset
    return offset_at(broker.offsets, topic.name, partition, place)


def read_choice(request: Request) -> RecordSelection:
    """Raises RefusedError."""
    headers = []
    wanted = read_bytes(request, "header")
    if len(wanted) > HEADERS_MAX:
        # Each is looked for in every record.
        raise bad_parameter("header", f"may be given {HEADERS_MAX} times")
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
