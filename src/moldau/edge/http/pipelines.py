"""GET /api/v1/pipelines: Spark pipelines, as they report themselves."""

from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.cluster_pipelines import PipelineListing
from moldau.edge.http.operation import TEXT, Operation, number
from moldau.edge.http.query_parameters import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    page_size,
    read_text,
    take_page,
)
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of

_AUDIT: Final = "audit"


class AuditShown(Struct, frozen=True, kw_only=True):
    """What an audit found; `ok` false: the records differ."""

    ok: bool
    summary: str


class PipelineShown(Struct, frozen=True, kw_only=True):
    """Counts are since its start, times in milliseconds since 1970; null: it did not say."""

    name: str
    kind: str
    state: str
    """starting, running, finished, stopped, failed; or lost: it should run, and was not heard of
    for 30 seconds."""
    topic: str | None
    """The first of `topics`."""
    topics: list[str]
    """That it reads; the first 20."""
    host: str
    batch: int | None
    """Number of its last micro-batch."""
    batch_seconds: float | None
    rows: int | None
    rows_total: int | None
    rows_per_second: float | None
    lag: int | None
    """Records in its topics that it has not processed."""
    dead_letters: int | None
    note: str
    error: str
    hint: str
    summary: str
    """Of its outcome; empty while it has none."""
    audit: AuditShown | None
    """Of a pipeline of the kind audit that has ended."""
    started_at_ms: int | None
    updated_at_ms: int


class PipelineList(Struct, frozen=True, kw_only=True):
    pipelines: list[PipelineShown]
    next: str | None
    is_complete: bool
    """Otherwise the broker has not read all reports yet: repeat the request."""
    silent: list[int]
    """The leader of their topic, if it did not respond; -1: there is none."""


PIPELINE_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/v1/pipelines"): Operation(
        "listPipelines",
        "Spark pipelines as they report themselves, in pages",
        {200: PipelineList},
        {"limit": number(1, PAGE_SIZE_MAX, default=PAGE_SIZE), "after": TEXT},
    )
}


def routes() -> list[Route]:
    async def pipelines(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), read_text(request, "after")
        board = await session_of(request).pipelines.board()
        page, has_more = take_page(
            (one for one in board.pipelines if after is None or one.name > after), size
        )
        return respond(
            PipelineList(
                pipelines=[_shown(one) for one in page],
                next=page[-1].name if has_more else None,
                is_complete=board.is_complete,
                silent=list(board.silent),
            )
        )

    return [Route("/api/v1/pipelines", pipelines, methods=["GET"])]


def _shown(one: PipelineListing) -> PipelineShown:
    audit = None
    if one.kind == _AUDIT and one.is_ok is not None:
        audit = AuditShown(ok=one.is_ok, summary=one.summary)
    return PipelineShown(
        name=one.name,
        kind=one.kind,
        state=one.state,
        topic=one.topics[0] if one.topics else None,
        topics=one.topics,
        host=one.host,
        batch=one.batch,
        batch_seconds=one.batch_seconds,
        rows=one.rows,
        rows_total=one.rows_total,
        rows_per_second=one.rows_per_second,
        lag=one.lag,
        dead_letters=one.dead_letters,
        note=one.note,
        error=one.error,
        hint=one.hint,
        summary=one.summary,
        audit=audit,
        started_at_ms=one.started_at_ms,
        updated_at_ms=one.updated_at_ms,
    )
