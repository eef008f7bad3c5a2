"""/api/v1/topics/{topic}/…: settings, more partitions, deleted records, leaders and replicas.

Any broker changes all partitions: the services ask the leaders and the controller. A request on
several partitions is not atomic: where some are refused, the problem says which.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.types import (
    HIGH_WATERMARK,
    INT_MAX,
    LONG_MAX,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    Topic,
)
from moldau.edge.concurrent_work import run_each
from moldau.edge.http.query_parameters import PAGE_SIZE
from moldau.edge.http.resources import Setting, TopicShown
from moldau.edge.http.responses import (
    PROBLEM_TYPE,
    check_query,
    problem,
    read_body,
    respond,
    retry_headers,
    status_of,
)
from moldau.edge.http.topics import settings_of, show_topic
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import ErrorReply

PARTITIONS_MAX: Final = 1000
"""In one request."""
_WAIT_MS_MAX: Final = 10_000
_REPLICAS_MAX: Final = 100

_Index = Annotated[int, Meta(ge=0, le=INT_MAX)]
_PartitionName = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,9})$")]
"""JSON has only strings as names of fields."""


class ConfigsWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that are to change; null: back to the default."""

    configs: dict[str, str | None]
    validate_only: bool = False


class ConfigsShown(Struct, frozen=True, kw_only=True):
    configs: list[Setting]
    """All of the topic, as they are then; with `validate_only`, as they would be."""


class PartitionsWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=INT_MAX)]
    """How many the topic has then."""
    validate_only: bool = False


class TrimWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first offset that each partition keeps; null: its end."""

    partitions: Annotated[
        dict[_PartitionName, Annotated[int, Meta(ge=0, le=LONG_MAX)] | None],
        Meta(min_length=1, max_length=PARTITIONS_MAX),
    ]


class PartitionTrimmed(Struct, frozen=True, kw_only=True):
    partition: int
    start_offset: int


class TopicTrimmed(Struct, frozen=True, kw_only=True):
    partitions: list[PartitionTrimmed]


class ElectionWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """null: all partitions that another replica leads than the preferred one."""

    partitions: Annotated[list[_Index], Meta(min_length=1, max_length=PARTITIONS_MAX)] | None = None


class PartitionElected(Struct, frozen=True, kw_only=True):
    partition: int
    leader: int


class TopicElected(Struct, frozen=True, kw_only=True):
    partitions: list[PartitionElected]


class ReplicasWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The brokers of each partition, the preferred leader first; null cancels a move."""

    partitions: Annotated[
        dict[_PartitionName, Annotated[list[_Index], Meta(max_length=_REPLICAS_MAX)] | None],
        Meta(min_length=1, max_length=PARTITIONS_MAX),
    ]


class PartitionMoved(Struct, frozen=True, kw_only=True):
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


class TopicMoved(Struct, frozen=True, kw_only=True):
    partitions: list[PartitionMoved]


class PartitionProblem(Struct, frozen=True, kw_only=True):
    partition: int
    error: str | None
    """null: this partition was changed."""
    detail: str = ""


class PartitionsProblem(ErrorReply, frozen=True, kw_only=True):
    """`partitions` has the result of each; empty if the request was refused as a whole."""

    partitions: list[PartitionProblem] = []


_configs_wanted: Final = msgspec.json.Decoder(ConfigsWanted)
_partitions_wanted: Final = msgspec.json.Decoder(PartitionsWanted)
_trim_wanted: Final = msgspec.json.Decoder(TrimWanted)
_election_wanted: Final = msgspec.json.Decoder(ElectionWanted)
_replicas_wanted: Final = msgspec.json.Decoder(ReplicasWanted)


def routes() -> list[Route]:
    def post(path: str, handle: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(f"/api/v1/topics/{{topic}}/{path}", handle, methods=["POST"])

    return [
        Route("/api/v1/topics/{topic}/configs", _change_configs, methods=["PATCH"]),
        post("partitions", _add_partitions),
        post("trim", _trim),
        post("elect", _elect),
        post("replicas", _move),
    ]


async def _change_configs(request: Request) -> Response:
    check_query(request)
    wanted = await read_body(request, _configs_wanted.decode)
    session = session_of(request)
    changes = [_change(name, value) for name, value in wanted.configs.items()]
    entries = await session.decided(
        session.configs.alter_topic(
            request.path_params["topic"], changes, validate_only=wanted.validate_only
        )
    )
    return respond(ConfigsShown(configs=settings_of(entries)))


def _change(name: str, value: str | None) -> ConfigChange:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    return ConfigChange(name=name, operation=operation, value=value)


async def _add_partitions(request: Request) -> Response:
    check_query(request)
    wanted = await read_body(request, _partitions_wanted.decode)
    session = session_of(request)
    found = session.topics.get(request.path_params["topic"])
    try:
        changed = await session.decided(
            session.topics.add_partitions(
                found.name, wanted.count, None, validate_only=wanted.validate_only
            )
        )
    except RefusedError as error:
        if error.code is ErrorCode.INVALID_PARTITIONS:
            error.hint = "count is how many the topic has then: more than now"
        raise
    if not wanted.validate_only:
        await session.topics.await_leaders([changed.name])
    shown: TopicShown = await show_topic(session, changed, PAGE_SIZE, -1)
    return respond(shown)


async def _trim(request: Request) -> Response:
    check_query(request)
    wanted = await read_body(request, _trim_wanted.decode)
    session = session_of(request)
    topic = session.topics.get(request.path_params["topic"])
    before = {
        int(name): HIGH_WATERMARK if offset is None else offset
        for name, offset in wanted.partitions.items()
    }
    results = await session.topics.trim(topic, before)
    for result in results.values():
        if isinstance(result, RefusedError) and result.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            result.hint = "null is the end of a partition; GET /api/v1/topics/{topic} shows it"
    refusals = {
        partition: result if isinstance(result, RefusedError) else None
        for partition, result in results.items()
    }
    if any(refusals.values()):
        return _respond_refusals(refusals)
    trimmed = [
        PartitionTrimmed(partition=partition, start_offset=result)
        for partition, result in results.items()
        if not isinstance(result, RefusedError)
    ]
    return respond(TopicTrimmed(partitions=trimmed))


async def _elect(request: Request) -> Response:
    check_query(request)
    wanted = await read_body(request, _election_wanted.decode)
    session = session_of(request)
    topic = session.topics.get(request.path_params["topic"])
    named = wanted.partitions
    if named is None:
        named = [index for name, index in session.cluster.elections_due() if name == topic.name]

    async def elect(partition: int) -> None:
        try:
            await session.cluster.elect(topic.name, partition, ElectionType.PREFERRED)
        except RefusedError as error:
            # The preferred replica leads.
            if error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                raise

    refusals = await _run(elect, dict.fromkeys(named))
    if any(refusals.values()):
        return _respond_refusals(refusals)
    elected = [
        PartitionElected(
            partition=partition, leader=session.cluster.leader_of(topic, partition).broker
        )
        for partition in refusals
    ]
    return respond(TopicElected(partitions=elected))


async def _move(request: Request) -> Response:
    check_query(request)
    wanted = await read_body(request, _replicas_wanted.decode)
    session = session_of(request)
    name = session.topics.get(request.path_params["topic"]).name
    moves = {int(index): replicas for index, replicas in wanted.partitions.items()}

    def move(partition: int) -> Coroutine[Any, Any, None]:
        return session.cluster.reassign(name, partition, moves[partition])

    refusals = await _run(move, moves)
    if any(refusals.values()):
        return _respond_refusals(refusals)
    return respond(TopicMoved(partitions=_moved(session.topics.get(name), moves)))


def _moved(topic: Topic, moves: Mapping[int, object]) -> list[PartitionMoved]:
    return [
        PartitionMoved(
            partition=partition.index,
            replicas=list(partition.replicas),
            adding=list(partition.adding),
            removing=list(partition.removing),
        )
        for partition in topic.partitions
        if partition.index in moves
    ]


async def _run(
    work: Callable[[int], Coroutine[Any, Any, None]], partitions: Mapping[int, object]
) -> dict[int, RefusedError | None]:
    named = list(partitions)
    return dict(zip(named, await run_each(work, named, _WAIT_MS_MAX), strict=True))


def _respond_refusals(refusals: Mapping[int, RefusedError | None]) -> Response:
    failed = [error for error in refusals.values() if error is not None]
    code = failed[0].code
    status = status_of(code)
    count = f"{len(failed)} of {len(refusals)} partitions: " if len(refusals) > 1 else ""
    details = problem(status, code, f"{count}{failed[0]}", failed[0].hint)
    partitions = [
        PartitionProblem(partition=partition, error=None)
        if error is None
        else PartitionProblem(partition=partition, error=error.code.name, detail=str(error))
        for partition, error in refusals.items()
    ]
    body = PartitionsProblem(**msgspec.structs.asdict(details), partitions=partitions)
    return respond(body, status, retry_headers(status), media_type=PROBLEM_TYPE)
