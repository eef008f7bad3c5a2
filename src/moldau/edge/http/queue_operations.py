"""The operations of `queue_admin`, for the OpenAPI document."""

from typing import Final

from moldau.api.types import INT_MAX
from moldau.edge.http.operation import Operation, number
from moldau.edge.http.query_parameters import PAGE_SIZE, PAGE_SIZE_MAX
from moldau.edge.http.queue_admin import (
    DeadLetterList,
    PurgeReply,
    PurgeWanted,
    QueueShown,
    RedriveReply,
    RedriveWanted,
)

_LIMIT: Final = {"limit": number(1, PAGE_SIZE_MAX, default=PAGE_SIZE)}
_ENCODING: Final = {"enum": ["text", "json", "base64"], "default": "text"}

QUEUE_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/v1/queues/{group}/{topic}"): Operation(
        "showQueue",
        "A queue: counts, a page of its partitions, and the messages that workers have",
        {200: QueueShown},
        {**_LIMIT, "after": number(-1, INT_MAX)},
        refusals=(404,),
    ),
    ("GET", "/api/v1/queues/{group}/{topic}/dead"): Operation(
        "listDeadLetters",
        "Dead letters of a queue that were not redriven, in pages",
        {200: DeadLetterList},
        {
            **_LIMIT,
            "after": {"type": "string", "pattern": "^[0-9]{1,10}/(-1|[0-9]{1,19})$"},
            "key_encoding": _ENCODING,
            "value_encoding": _ENCODING,
            "header_encoding": {"enum": ["text", "base64"], "default": "text"},
        },
        refusals=(404,),
    ),
    ("POST", "/api/v1/queues/{group}/{topic}/redrive"): Operation(
        "redrive",
        "Send dead letters of a queue back to its topic, or to another one",
        {200: RedriveReply},
        {},
        body=RedriveWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/queues/{group}/{topic}/purge"): Operation(
        "purgeQueue",
        "Remove the dead letters, or the ready messages, of a queue",
        {200: PurgeReply},
        {},
        body=PurgeWanted,
        refusals=(404,),
    ),
}
