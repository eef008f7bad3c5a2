"""/api/v1/queues/{group}/{topic}: a queue, its dead letters, redrive and purge.

Any broker answers: the services ask the leaders of the partitions.
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.queues import (
    DeadLetterPosition,
    LeaderRefusal,
    PartitionReport,
    Purged,
    QueueView,
    RedriveRow,
)
from moldau.api.types import INT_MAX, LONG_MAX
from moldau.edge.http.query_parameters import (
    bad_parameter,
    page_size,
    parse_int,
    read_int,
    read_text,
    take_page,
)
from moldau.edge.http.record_json import RecordShown, show_all
from moldau.edge.http.records import read_selection
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.dead_letters import note_of, number_of
from moldau.records.record import Record

RECORDS_MAX: Final = 1000
"""Dead letters that a redrive may name."""
_START: Final = DeadLetterPosition(0, -1)


class QueueSettingsShown(Struct, frozen=True, kw_only=True):
    visibility_ms: int
    attempts_max: int
    backoff_ms: int
    backoff_ms_max: int
    dead_letter_topic: str
    """Empty for a client that may not describe it."""
    starts_at_end: bool


class QueuePartitionShown(Struct, frozen=True, kw_only=True):
    """All null, while the leader does not respond."""

    partition: int
    leader: int
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    """About to be moved to the dead-letter topic."""
    redeliveries: int | None
    """Deliveries beyond the first, of messages that are not acked."""
    acked_up_to: int | None
    """All messages below are acked, or dead letters."""
    end_offset: int | None
    oldest_ready_ms: int | None
    """How long ago the oldest ready message was stored; null, too, if none is ready."""


class InFlightShown(Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    worker: str
    attempt: int
    lease_left_ms: int


class QueueShown(Struct, frozen=True, kw_only=True):
    """Counts are over all partitions; null if that of one is unknown."""

    group: str
    topic: str
    topics: list[str]
    """All of the group."""
    settings: QueueSettingsShown
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    """Dead letters that were not redriven, of all topics of the group, with those that are about to
    be moved to the dead-letter topic."""
    partitions: list[QueuePartitionShown]
    next: int | None
    in_flight: list[InFlightShown]
    """At most 1,000."""
    in_flight_count: int | None
    """All, also those that are not shown."""
    silent: list[int]
    """Brokers that did not respond; -1: a partition has no leader."""


class DeadLetterSource(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int | None
    offset: int | None


class EarlierDeathShown(Struct, frozen=True, kw_only=True):
    died_at_ms: int | None
    attempts: int | None
    topic: str
    reason: str


class DeadLetterShown(Struct, frozen=True, kw_only=True):
    """`partition` and `offset` are those in the dead-letter topic."""

    partition: int
    offset: int
    timestamp: int
    key: Raw
    value: Raw
    headers: list[tuple[str, Raw]]
    key_base64: str | None
    value_base64: str | None
    value_bytes: int
    reason: str
    attempts: int | None
    died_at_ms: int | None
    source: DeadLetterSource
    history: list[EarlierDeathShown]
    """What became of it before it was redriven, the oldest first; of the last 10 times."""
    is_cut: bool
    """It was too large for the dead-letter topic, or unreadable: it cannot be redriven."""


class DeadLetterList(Struct, frozen=True, kw_only=True):
    topic: str
    """The dead-letter topic."""
    records: list[DeadLetterShown]
    next: str | None
    silent: list[int]


class DeadLetterNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: Annotated[int, Meta(ge=0, le=INT_MAX)]
    offset: Annotated[int, Meta(ge=0, le=LONG_MAX)]


class RedriveWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`records` null: all of the queue. `target` null: the topic of the queue."""

    records: Annotated[list[DeadLetterNamed], Meta(min_length=1, max_length=RECORDS_MAX)] | None
    target: str | None = None
    validate_only: bool = False


class RedrivenTo(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int


class RedrivenShown(Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    error: str | None
    target: RedrivenTo | None


class LeaderRefused(Struct, frozen=True, kw_only=True):
    """What a leader did not do, or not to the end."""

    broker: int
    partitions: list[int]
    error: str


class RedriveReply(Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    target: str
    validate_only: bool
    redriven: int
    """Stored in the target by all replicas in sync; with `validate_only`, would be sent."""
    failed: int
    duplicates: int
    """Dropped: another dead letter of the same message was sent."""
    left: int | None
    """Of all: dead letters that are not redriven, of all topics of the group; null: unknown. Of
    those that were named: those that nobody looked at. With `validate_only`, as it would be."""
    is_complete: bool
    """Whether all were looked at; otherwise repeat the request for the rest."""
    records: list[RedrivenShown]
    """The first 1,000."""
    refused: list[LeaderRefused]
    """The rest was done."""
    silent: list[int]


class PurgeWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    confirm: str
    """The name of the group."""
    what: Purged


class PurgeReply(Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    what: Purged
    purged: int
    is_complete: bool
    """Otherwise repeat the request for the rest."""
    refused: list[LeaderRefused]
    """The rest was done."""
    silent: list[int]


_redrive_wanted: Final = msgspec.json.Decoder(RedriveWanted)
_purge_wanted: Final = msgspec.json.Decoder(PurgeWanted)

_QUEUE: Final = "/api/v1/queues/{group:path}/{topic}"
"""Group names may contain slashes."""


def routes() -> list[Route]:
    async def show(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), read_int(request, "after", least=-1, most=INT_MAX)
        group, topic = _names(request)
        view = await session_of(request).queue_admin.show(group, topic)
        return respond(_queue_shown(view, topic, size, -1 if after is None else after))

    async def dead_letters(request: Request) -> Response:
        check_query(request, "limit", "after", "key_encoding", "value_encoding", "header_encoding")
        size, after, selection = page_size(request), _read_after(request), read_selection(request)
        session = session_of(request)
        page = await session.queue_admin.dead_letters(*_names(request), after, size)
        records = [record for _, record in page.records]
        shown = await show_all(records, selection)
        return respond(
            DeadLetterList(
                topic=page.topic,
                records=[
                    _letter_shown(partition, record, one)
                    for (partition, record), one in zip(page.records, shown, strict=True)
                ],
                next=None if page.next is None else f"{page.next.partition}/{page.next.offset}",
                silent=page.silent,
            )
        )

    async def redrive(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _redrive_wanted.decode)
        group, topic = _names(request)
        named = wanted.records
        done = await session_of(request).queue_admin.redrive(
            group,
            topic,
            None if named is None else [DeadLetterPosition(x.partition, x.offset) for x in named],
            target=wanted.target,
            validate_only=wanted.validate_only,
        )
        report = done.report
        return respond(
            RedriveReply(
                group=group,
                topic=topic,
                target=done.target,
                validate_only=wanted.validate_only,
                redriven=report.redriven,
                failed=report.failed,
                duplicates=report.duplicates,
                left=done.left,
                is_complete=report.is_complete,
                records=[_row_shown(row, done.target) for row in report.rows],
                refused=_refused_shown(done.refused),
                silent=done.silent,
            )
        )

    async def purge(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _purge_wanted.decode)
        group, topic = _names(request)
        done = await session_of(request).queue_admin.purge(
            group, topic, wanted.what, confirm=wanted.confirm
        )
        return respond(
            PurgeReply(
                group=group,
                topic=topic,
                what=wanted.what,
                purged=done.purged,
                is_complete=done.is_complete,
                refused=_refused_shown(done.refused),
                silent=done.silent,
            )
        )

    return [
        Route(f"{_QUEUE}/dead", dead_letters, methods=["GET"]),
        Route(f"{_QUEUE}/redrive", redrive, methods=["POST"]),
        Route(f"{_QUEUE}/purge", purge, methods=["POST"]),
        Route(_QUEUE, show, methods=["GET"]),
    ]


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["group"], request.path_params["topic"]


def _read_after(request: Request) -> DeadLetterPosition:
    text = read_text(request, "after")
    if text is None:
        return _START
    partition, _, offset = text.partition("/")
    index, position = parse_int(partition), parse_int(offset)
    if index is None or position is None or not (0 <= index <= INT_MAX and position >= -1):
        raise bad_parameter("after", "must be PARTITION/OFFSET")
    return DeadLetterPosition(index, min(position, LONG_MAX - 1))


def _queue_shown(view: QueueView, topic: str, size: int, after: int) -> QueueShown:
    reports = [report for _, report in view.partitions]

    def total(count: Callable[[PartitionReport], int]) -> int | None:
        known = [count(report) for report in reports if report is not None]
        return sum(known) if len(known) == len(reports) else None

    indexed = ((index, *one) for index, one in enumerate(view.partitions) if index > after)
    page, has_more = take_page(indexed, size)
    moving, dead = total(lambda one: one.dead), view.dead_letters
    settings = view.group.settings
    return QueueShown(
        group=view.group.name,
        topic=topic,
        topics=list(view.group.topics),
        settings=QueueSettingsShown(
            visibility_ms=settings.visibility_ms,
            attempts_max=settings.attempts_max,
            backoff_ms=settings.backoff_ms,
            backoff_ms_max=settings.backoff_ms_max,
            dead_letter_topic=settings.dead_letter_topic,
            starts_at_end=settings.starts_at_end,
        ),
        ready=total(lambda one: one.ready),
        leased=total(lambda one: one.leased),
        delayed=total(lambda one: one.delayed),
        dead=None if moving is None or dead is None else moving + dead,
        partitions=[_partition_shown(index, leader, one) for index, leader, one in page],
        next=page[-1][0] if has_more else None,
        in_flight=[
            InFlightShown(
                partition=one.partition,
                offset=one.offset,
                worker=one.worker,
                attempt=one.attempt,
                lease_left_ms=one.lease_left_ms,
            )
            for one in view.in_flight
        ],
        in_flight_count=total(lambda one: one.leased),
        silent=view.silent,
    )


def _partition_shown(
    index: int, leader: int, report: PartitionReport | None
) -> QueuePartitionShown:
    return QueuePartitionShown(
        partition=index,
        leader=leader,
        ready=None if report is None else report.ready,
        leased=None if report is None else report.leased,
        delayed=None if report is None else report.delayed,
        dead=None if report is None else report.dead,
        redeliveries=None if report is None else report.redeliveries,
        acked_up_to=None if report is None else report.acked_up_to,
        end_offset=None if report is None else report.end,
        oldest_ready_ms=None if report is None else report.oldest_ready_ms,
    )


def _letter_shown(partition: int, record: Record, shown: RecordShown) -> DeadLetterShown:
    note = note_of(record.headers)
    if note is None:
        raise TypeError("a record without the headers of a dead letter was found as one")
    return DeadLetterShown(
        partition=partition,
        offset=shown.offset,
        timestamp=shown.timestamp,
        key=shown.key,
        value=shown.value,
        headers=shown.headers,
        key_base64=shown.key_base64,
        value_base64=shown.value_base64,
        value_bytes=len(record.value or b""),
        reason=note.reason,
        attempts=note.attempts,
        died_at_ms=note.died_at_ms,
        source=DeadLetterSource(
            topic=note.origin.topic,
            partition=number_of(note.origin.partition),
            offset=number_of(note.origin.offset),
        ),
        history=[EarlierDeathShown(**earlier._asdict()) for earlier in note.earlier],
        is_cut=bool(note.missing),
    )


def _refused_shown(refused: list[LeaderRefusal]) -> list[LeaderRefused]:
    return [
        LeaderRefused(broker=each.broker, partitions=each.partitions, error=each.error)
        for each in refused
    ]


def _row_shown(row: RedriveRow, target: str) -> RedrivenShown:
    is_sent = not row.error and row.target_offset >= 0
    to = RedrivenTo(topic=target, partition=row.target_partition, offset=row.target_offset)
    return RedrivenShown(
        partition=row.partition,
        offset=row.offset,
        error=row.error or None,
        target=to if is_sent else None,
    )
