"""GET /api/v1/queues: queue groups with their topics and settings, and what is in them.

Their backlog is known only to the leaders of their partitions: it is asked for, if wanted, of a
bounded number of queues.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.queues import PartitionReport, QueueView
from moldau.api.session import Session
from moldau.edge.http.query_parameters import (
    page_size,
    read_flag,
    read_search,
    read_text,
    take_page,
)
from moldau.edge.http.resources import QueueCounts, QueueList, QueueListed
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of
from moldau.model.dead_letters import REDRIVE_SUFFIX
from moldau.model.errors import RefusedError

COUNTED_MAX: Final = 100
"""Queues per page whose messages are counted."""
_COUNTED_AT_ONCE: Final = 8
_COUNT_SECONDS: Final = 3.0

_Queue = tuple[str, str]
"""A group and a topic."""


def routes() -> list[Route]:
    async def queues(request: Request) -> Response:
        check_query(request, "limit", "after", "topic", "search", "counts")
        size, after = page_size(request), read_text(request, "after")
        topic, fits = read_text(request, "topic"), read_search(request)
        with_counts = read_flag(request, "counts")
        session = session_of(request)
        groups = {group.name: group for group in session.queues.known_groups()}
        found = (
            group
            for group in sorted(groups.values(), key=attrgetter("name"))
            if (after is None or group.name > after)
            and (topic is None or topic in group.topics)
            and (fits(group.name) or any(map(fits, group.topics)))
        )
        page, has_more = take_page(found, size)
        listed = [
            QueueListed(
                group=group.name,
                topics=list(group.topics),
                is_redrive=group.name.endswith(REDRIVE_SUFFIX)
                and (of := groups.get(group.name.removesuffix(REDRIVE_SUFFIX))) is not None
                and list(group.topics) == [of.settings.dead_letter_topic],
                visibility_ms=group.settings.visibility_ms,
                attempts_max=group.settings.attempts_max,
                backoff_ms=group.settings.backoff_ms,
                backoff_ms_max=group.settings.backoff_ms_max,
                dead_letter_topic=group.settings.dead_letter_topic,
            )
            for group in page
        ]
        if with_counts:
            listed = await _counted(session, listed)
        return respond(QueueList(queues=listed, next=listed[-1].group if has_more else None))

    return [Route("/api/v1/queues", queues, methods=["GET"])]


async def _counted(session: Session, listed: list[QueueListed]) -> list[QueueListed]:
    """The queues of workers among them, with what is in the first `COUNTED_MAX`."""
    wanted = [(one.group, topic) for one in listed if not one.is_redrive for topic in one.topics]
    views = await _views(session, wanted[:COUNTED_MAX])
    return [
        replace(
            one,
            counts=[
                _counts(topic, views[one.group, topic])
                for topic in one.topics
                if (one.group, topic) in views
            ],
        )
        for one in listed
    ]


async def _views(session: Session, queues: Iterable[_Queue]) -> dict[_Queue, QueueView]:
    """Those that could be asked for in time."""
    waiting = deque(queues)
    found: dict[_Queue, QueueView] = {}

    async def ask() -> None:
        while waiting:
            queue = waiting.popleft()
            try:
                found[queue] = await session.queue_admin.show(*queue)
            except RefusedError:
                # Deleted meanwhile, or not for this client.
                continue

    try:
        async with asyncio.timeout(_COUNT_SECONDS), asyncio.TaskGroup() as tasks:
            for _ in range(min(_COUNTED_AT_ONCE, len(waiting))):
                tasks.create_task(ask())
    except TimeoutError:
        pass
    return found


def _counts(topic: str, view: QueueView) -> QueueCounts:
    reports = [report for _, report in view.partitions]

    def total(count: Callable[[PartitionReport], int]) -> int | None:
        known = [count(report) for report in reports if report is not None]
        return sum(known) if len(known) == len(reports) else None

    moving, dead = total(lambda one: one.dead), view.dead_letters
    return QueueCounts(
        topic=topic,
        ready=total(lambda one: one.ready),
        leased=total(lambda one: one.leased),
        delayed=total(lambda one: one.delayed),
        dead=None if moving is None or dead is None else moving + dead,
    )
