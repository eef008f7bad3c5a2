"""/api/v1/groups/{group}: sets the offsets of a group, and deletes it, on its coordinator."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.cluster_queries import PartitionExtent
from moldau.api.session import Session
from moldau.api.types import INT_MAX, LONG_MAX, Topic
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, TopicPartition

_PARTITIONS_MAX: Final = 10_000
"""As many as a topic may have."""
_Index = Annotated[int, Meta(ge=0, le=INT_MAX)]


class ResetTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of these: an offset, milliseconds since 1970, or records from the current position."""

    offset: Annotated[int, Meta(ge=0, le=LONG_MAX)] | None = None
    time: Annotated[int, Meta(ge=0, le=LONG_MAX)] | None = None
    shift: Annotated[int, Meta(ge=-LONG_MAX, le=LONG_MAX)] | None = None


class ResetWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partitions: Annotated[list[_Index], Meta(min_length=1, max_length=_PARTITIONS_MAX)] | None = (
        None
    )
    """null: all of the topic; for a shift, all with a committed offset."""
    to: Literal["earliest", "latest"] | ResetTarget
    force: bool = False
    """Removes members first."""
    validate_only: bool = False


class ResetPartition(Struct, frozen=True, kw_only=True):
    partition: int
    before: int | None = msgspec.field(name="from")
    """null: nothing was committed."""
    to: int
    read_again: int
    """Records between the two, if the position moves back; of those that still exist."""
    skipped: int
    """Records between the two, if it moves on."""


class GroupReset(Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    partitions: list[ResetPartition]
    validate_only: bool


class GroupDeleted(Struct, frozen=True, kw_only=True):
    group: str


_reset_wanted: Final = msgspec.json.Decoder(ResetWanted)


def routes() -> list[Route]:
    # Group names may contain slashes.
    return [Route("/api/v1/groups/{group:path}/reset", _reset, methods=["POST"])]


async def delete(request: Request) -> Response:
    check_query(request)
    name, session = request.path_params["group"], session_of(request)
    coordinator = await _find_coordinator(session, name)
    if coordinator != session.broker_id:
        return relay_to(request, coordinator)
    _check_not_queue(session, name)
    errors = await session.decided(session.groups.delete_groups([name]))
    error = errors[name]
    if error is ErrorCode.NONE:
        return respond(GroupDeleted(group=name))
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        raise _no_group(name)
    if error is ErrorCode.NON_EMPTY_GROUP:
        raise _not_empty(name, "stop its members first")
    words = "Not authorized to delete" if _is_right(error) else "The coordinator did not delete"
    raise RefusedError(error, f"{words} group '{name}'")


def _is_right(error: ErrorCode) -> bool:
    return error is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def _reset(request: Request) -> Response:
    check_query(request)
    name, session = request.path_params["group"], session_of(request)
    coordinator = await _find_coordinator(session, name)
    if coordinator != session.broker_id:
        return relay_to(request, coordinator)
    wanted = await read_body(request, _reset_wanted.decode)
    topic = session.topics.get(wanted.topic)
    _check_not_queue(session, name)
    hint = "stop its members first, or remove them by force: true"
    if _count_members(session, name) and not wanted.force:
        raise _not_empty(name, hint)
    changes, known = await _changes(session, name, topic, wanted)
    is_shift = isinstance(wanted.to, ResetTarget) and wanted.to.shift is not None
    work = session.groups.reset(
        name,
        topic,
        {change.partition: change.to for change in changes},
        removes_members=wanted.force,
        validate_only=wanted.validate_only,
        # A shift begins at what was committed: members may go on meanwhile.
        expected=_positions(changes) if is_shift else None,
    )
    try:
        replaced = await session.decided(work)
    except RefusedError as error:
        if error.code is ErrorCode.NON_EMPTY_GROUP:
            # A member joined meanwhile.
            raise _not_empty(name, hint) from None
        if error.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
            error.hint = "name fewer partitions in one request"
        if error.code is ErrorCode.INVALID_UPDATE_VERSION:
            raise _moved_on(name) from None
        raise
    if replaced is not None and replaced != _positions(changes):
        changes = [
            _change(one.partition, replaced.get(one.partition), one.to, known[one.partition])
            for one in changes
        ]
    shown = GroupReset(
        group=name, topic=topic.name, partitions=changes, validate_only=wanted.validate_only
    )
    return respond(shown)


async def _find_coordinator(session: Session, name: str) -> int:
    """Raises RefusedError."""
    if not session.groups.are_stored:
        # No group exists yet; finding a coordinator would create the topic. Only clients that may
        # know of the group learn that.
        session.groups.describe(name)
        raise _no_group(name)
    return await session.groups.find_coordinator(name)


def _count_members(session: Session, name: str) -> int:
    """Raises RefusedError, also if there is no such group."""
    modern = session.groups.describe_consumers(name)
    if modern.error is ErrorCode.NONE:
        return len(modern.members)
    if modern.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise RefusedError(modern.error, modern.message or "")
    classic = session.groups.describe(name)
    if classic.error is ErrorCode.GROUP_ID_NOT_FOUND:
        raise _no_group(name)
    if classic.error is not ErrorCode.NONE:
        raise RefusedError(classic.error, f"Group '{name}' is temporarily unavailable")
    return len(classic.members)


def _check_not_queue(session: Session, name: str) -> None:
    """Raises RefusedError. The coordinator refuses it, too, with less to say."""
    if any(queue.name == name for queue in session.queues.known_groups()):
        refusal = RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group '{name}' is a queue group")
        refusal.hint = "GET /api/v1/queues lists the queue groups; moldau queue --help"
        raise refusal


def _no_group(name: str) -> RefusedError:
    return RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group '{name}' does not exist")


def _not_empty(name: str, hint: str) -> RefusedError:
    refusal = RefusedError(ErrorCode.NON_EMPTY_GROUP, f"Group '{name}' has members")
    refusal.hint = hint
    return refusal


def _moved_on(name: str) -> RefusedError:
    refusal = RefusedError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Group '{name}' committed other offsets meanwhile; nothing was changed",
    )
    refusal.hint = "stop its members, or repeat the preview and the request"
    return refusal


def _positions(changes: Iterable[ResetPartition]) -> dict[int, int]:
    return {one.partition: one.before for one in changes if one.before is not None}


async def _changes(
    session: Session, name: str, topic: Topic, wanted: ResetWanted
) -> tuple[list[ResetPartition], Mapping[int, PartitionExtent]]:
    """From where to where each partition goes, and what exists. Raises RefusedError."""
    indexes = list(dict.fromkeys(wanted.partitions or range(len(topic.partitions))))
    for index in indexes:
        if index >= len(topic.partitions):
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{topic.name}' has no partition {index}; it has {len(topic.partitions)}",
            )
    committed = await _committed(session, name, topic, indexes)
    if isinstance(wanted.to, ResetTarget) and wanted.to.shift is not None:
        indexes = _with_position(indexes, committed, is_chosen=wanted.partitions is not None)
    extents = await session.queries.extents(_partition(topic, index) for index in indexes)
    known: dict[int, PartitionExtent] = {
        partition.partition: extent for partition, extent in extents.items()
    }
    _check_all(topic, indexes, known)
    targets = await _targets(session, topic, indexes, wanted.to, committed, known)
    _check_all(topic, indexes, targets)
    changes = [
        _change(index, committed.get(index), targets[index], known[index]) for index in indexes
    ]
    return changes, known


async def _committed(
    session: Session, name: str, topic: Topic, indexes: list[int]
) -> dict[int, int]:
    fetched = await session.groups.fetch_offsets(
        name, [_partition(topic, index) for index in indexes]
    )
    if fetched.error is not ErrorCode.NONE:
        raise RefusedError(
            fetched.error, f"The offsets of group '{name}' are temporarily unavailable"
        )
    return {partition.partition: stored.offset for partition, stored in fetched.offsets.items()}


def _partition(topic: Topic, index: int) -> TopicPartition:
    return TopicPartition(topic.name, PartitionIndex(index))


def _with_position(
    indexes: list[int], committed: Mapping[int, int], *, is_chosen: bool
) -> list[int]:
    """A shift begins at the current position. Raises RefusedError."""
    found = [index for index in indexes if index in committed]
    if not found or (is_chosen and len(found) < len(indexes)):
        without = next(index for index in indexes if index not in committed)
        refusal = RefusedError(
            ErrorCode.INVALID_REQUEST, f"Partition {without} has no committed offset to shift"
        )
        refusal.hint = "choose other partitions, or another target than a shift"
        raise refusal
    return found


def _check_all(topic: Topic, indexes: list[int], known: Mapping[int, object]) -> None:
    missing = next((index for index in indexes if index not in known), None)
    if missing is not None:
        raise RefusedError(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"The leader of {topic.name}-{missing} does not respond; nothing was changed",
        )


async def _targets(
    session: Session,
    topic: Topic,
    indexes: list[int],
    to: str | ResetTarget,
    committed: Mapping[int, int],
    extents: Mapping[int, PartitionExtent],
) -> Mapping[int, int]:
    """Before they are clamped to what exists. Raises RefusedError."""
    match to:
        case "earliest":
            return {index: extents[index].start for index in indexes}
        case "latest":
            return {index: extents[index].end for index in indexes}
        case ResetTarget(offset=int(offset), time=None, shift=None):
            return dict.fromkeys(indexes, offset)
        case ResetTarget(offset=None, time=int(time), shift=None):
            return await session.queries.offsets_at(topic, indexes, time)
        case ResetTarget(offset=None, time=None, shift=int(shift)):
            return {index: committed[index] + shift for index in indexes}
    raise RefusedError(ErrorCode.INVALID_REQUEST, "'to' must have one of offset, time and shift")


def _change(
    index: int, committed: int | None, target: int, extent: PartitionExtent
) -> ResetPartition:
    to = min(max(target, extent.start), extent.end)
    # Records before the start are gone: they are neither read again nor skipped.
    seen = to if committed is None else min(max(committed, extent.start), extent.end)
    return ResetPartition(
        partition=index,
        before=committed,
        to=to,
        read_again=max(0, seen - to),
        skipped=max(0, to - seen),
    )
