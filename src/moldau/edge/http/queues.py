"""GET /api/v1/queues: queue groups with their topics and settings.

Their backlog is known only to the leaders of their partitions, and served over gRPC.
"""

from operator import attrgetter

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.edge.http.query_parameters import page_size, read_text, take_page
from moldau.edge.http.resources import QueueList, QueueListed
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of


def routes() -> list[Route]:
    async def queues(request: Request) -> Response:
        check_query(request, "limit", "after", "topic")
        size, after = page_size(request), read_text(request, "after")
        topic = read_text(request, "topic")
        found = (
            group
            for group in sorted(session_of(request).queues.known_groups(), key=attrgetter("name"))
            if (after is None or group.name > after) and (topic is None or topic in group.topics)
        )
        page, has_more = take_page(found, size)
        listed = [
            QueueListed(
                group=group.name,
                topics=list(group.topics),
                visibility_ms=group.settings.visibility_ms,
                attempts_max=group.settings.attempts_max,
                backoff_ms=group.settings.backoff_ms,
                backoff_ms_max=group.settings.backoff_ms_max,
                dead_letter_topic=group.settings.dead_letter_topic,
            )
            for group in page
        ]
        return respond(QueueList(queues=listed, next=listed[-1].group if has_more else None))

    return [Route("/api/v1/queues", queues, methods=["GET"])]
