"""/api/v1/backup and /api/v1/restore, for `moldau backup`. It reads records as consumers do."""

from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.types import LONG_MAX
from moldau.edge.http.query_parameters import bad_parameter, read_int
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.backup import (
    RUN_BYTES_MAX,
    ClusterToRestore,
    QueueGroupCopy,
    QueueToRestore,
    Restored,
    RestoredTo,
    StartToRestore,
)

_RUN_TYPE: Final = "application/octet-stream"
_BODY_BYTES_MAX: Final = 8 * 1024 * 1024
_cluster: Final = msgspec.json.Decoder(ClusterToRestore)
_start: Final = msgspec.json.Decoder(StartToRestore)
_queue: Final = msgspec.json.Decoder(QueueToRestore)
_queue_group: Final = msgspec.json.Decoder(QueueGroupCopy)


def routes() -> list[Route]:

    async def cluster(request: Request) -> Response:
        check_query(request)
        return respond(session_of(request).backup.cluster())

    async def queues(request: Request) -> Response:
        check_query(request)
        group, topic = request.path_params["group"], request.path_params["topic"]
        return respond(await session_of(request).backup.queues(group, topic))

    async def append(request: Request) -> Response:
        check_query(request, "offset")
        offset = read_int(request, "offset", least=0, most=LONG_MAX)
        if offset is None:
            raise bad_parameter("offset", "is missing")
        data = await _read_run(request)
        topic, partition = request.path_params["topic"], request.path_params["partition"]
        end = await session_of(request).backup.append(topic, partition, offset, data)
        return respond(RestoredTo(offset=end))

    async def trim(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _start.decode)
        return respond(RestoredTo(offset=await session_of(request).backup.trim(wanted)))

    async def restore_cluster(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _cluster.decode, bytes_max=_BODY_BYTES_MAX)
        await session_of(request).backup.restore_cluster(wanted)
        return respond(Restored(restored="cluster"))

    async def restore_queue(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _queue.decode, bytes_max=_BODY_BYTES_MAX)
        await session_of(request).backup.restore_queue(wanted)
        return respond(Restored(restored=wanted.group))

    async def define_queue(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _queue_group.decode)
        await session_of(request).backup.define_queue(wanted)
        return respond(Restored(restored=wanted.name))

    return [
        Route("/api/v1/backup/cluster", cluster, methods=["GET"]),
        Route("/api/v1/backup/queues/{group}/{topic}", queues, methods=["GET"]),
        Route("/api/v1/restore/topics/{topic}/{partition:int}", append, methods=["POST"]),
        Route("/api/v1/restore/starts", trim, methods=["POST"]),
        Route("/api/v1/restore/cluster", restore_cluster, methods=["POST"]),
        Route("/api/v1/restore/queues", restore_queue, methods=["POST"]),
        Route("/api/v1/restore/queue-groups", define_queue, methods=["POST"]),
    ]


async def _read_run(request: Request) -> bytearray:
    """The batches in the body. No form of another web site can send this Content-Type."""
    if request.headers.get("content-type", "") != _RUN_TYPE:
        raise HTTPException(415, f"Content-Type must be {_RUN_TYPE}")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > RUN_BYTES_MAX:
            raise HTTPException(413, f"The body is too large; the limit is {RUN_BYTES_MAX} bytes")
    return data
