"""GET /api/v1/groups: members, committed offsets and lag of consumer groups."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.cluster_queries import PartitionExtent
from moldau.api.overview.group_lags import GroupLag, PositionLag
from moldau.api.session import Session
from moldau.api.types import (
    CommittedOffset,
    DescribedMember,
    read_assignment,
    subscribed_topics,
)
from moldau.edge.http import group_changes
from moldau.edge.http.methods import by_method
from moldau.edge.http.query_parameters import (
    bad_parameter,
    page_size,
    parse_int,
    read_flag,
    read_search,
    read_text,
    take_page,
)
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.resources import (
    GroupList,
    GroupListed,
    GroupShown,
    MemberShown,
    PositionShown,
    TopicAssigned,
)
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.rights import may_with_group
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, TopicId, TopicPartition

MEMBERS_MAX: Final = 1000
_START: Final = TopicPartition("", PartitionIndex(-1))


class _Described(NamedTuple):
    """A group of either type."""

    type: str
    state: str
    protocol: str
    members: list[MemberShown]


def routes() -> list[Route]:
    async def groups(request: Request) -> Response:
        check_query(request, "limit", "after", "search", "lag")
        size, after = page_size(request), read_text(request, "after")
        fits, with_lag = read_search(request), read_flag(request, "lag")
        queries = session_of(request).queries
        found, silent = await queries.groups()
        page, has_more = take_page(
            (
                one
                for one in found
                if (after is None or one[0].group_id > after) and fits(one[0].group_id)
            ),
            size,
        )
        listed = [
            GroupListed(
                group=group.group_id,
                type=group.group_type,
                state=group.state,
                protocol_type=group.protocol_type,
                coordinator=coordinator,
            )
            for group, coordinator in page
        ]
        if with_lag:
            lags = await queries.group_lags((one.group_id, broker) for one, broker in page)
            listed = [_with_lag(one, lags.get(one.group)) for one in listed]
        following = listed[-1].group if has_more else None
        return respond(GroupList(groups=listed, next=following, silent=list(silent)))

    async def group(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), _read_after(request)
        name = request.path_params["group"]
        session = session_of(request)
        if not session.groups.are_stored:
            # No group exists yet; finding a coordinator would create the topic. Only clients that
            # may know of the group learn that.
            session.groups.describe(name)
            raise _no_group(name)
        coordinator = await session.groups.find_coordinator(name)
        if coordinator != session.broker_id:
            return relay_to(request, coordinator)
        return respond(await _show(session, name, size, after))

    return [
        Route("/api/v1/groups", groups, methods=["GET"]),
        # Group names may contain slashes.
        by_method("/api/v1/groups/{group:path}", GET=group, DELETE=group_changes.delete),
    ]


def _with_lag(group: GroupListed, lag: GroupLag | None) -> GroupListed:
    if lag is None:
        return replace(group, lag=None, lag_seconds=None)
    return replace(group, lag=lag.records, lag_seconds=lag.seconds)


def _no_group(name: str) -> RefusedError:
    return RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group '{name}' does not exist")


def _read_after(request: Request) -> TopicPartition:
    text = read_text(request, "after")
    if text is None:
        return _START
    topic, _, partition = text.rpartition("/")
    index = parse_int(partition)
    if index is None:
        raise bad_parameter("after", "must be TOPIC/PARTITION")
    return TopicPartition(topic, PartitionIndex(index))


async def _show(session: Session, name: str, size: int, after: TopicPartition) -> GroupShown:
    described = _describe(session, name)
    fetched = await session.groups.fetch_offsets(name)
    if fetched.error is not ErrorCode.NONE:
        raise RefusedError(
            fetched.error, f"The offsets of group '{name}' are temporarily unavailable"
        )
    ends = await session.queries.extents(fetched.offsets)
    lags = await session.queries.position_lags(name)
    positions = {
        partition: _position(partition, stored, ends.get(partition), lags.get(partition))
        for partition, stored in fetched.offsets.items()
    }
    page, has_more = take_page((one for one in sorted(positions) if one > after), size)
    known = [one.lag for one in positions.values() if one.lag is not None]
    return GroupShown(
        group=name,
        type=described.type,
        state=described.state,
        protocol=described.protocol,
        coordinator=session.broker_id,
        member_count=len(described.members),
        members=described.members[:MEMBERS_MAX],
        lag=sum(known) if len(known) == len(positions) else None,
        offsets=[positions[partition] for partition in page],
        next=f"{page[-1].topic}/{page[-1].partition}" if has_more else None,
        may=may_with_group(session, name),
    )


def _position(
    partition: TopicPartition,
    stored: CommittedOffset,
    extent: PartitionExtent | None,
    measured: PositionLag | None,
) -> PositionShown:
    lag = None if extent is None else max(0, extent.end - stored.offset)
    seconds = None if measured is None else measured.seconds
    if lag == 0:
        seconds = 0.0
    return PositionShown(
        topic=partition.topic,
        partition=partition.partition,
        committed=stored.offset,
        metadata=_text(stored.metadata),
        end_offset=None if extent is None else extent.end,
        lag=lag,
        lag_seconds=None if seconds is None else round(seconds, 3),
    )


def _describe(session: Session, name: str) -> _Described:
    """Raises RefusedError."""
    modern = session.groups.describe_consumers(name)
    if modern.error is ErrorCode.NONE:
        members = [
            MemberShown(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=_text(member.client_id),
                client_host=member.client_host,
                topics=sorted(member.topics),
                assigned=_named(session, member.assigned),
            )
            for member in modern.members
        ]
        return _Described("consumer", str(modern.state), modern.assignor, members)
    classic = session.groups.describe(name)
    if classic.error is ErrorCode.GROUP_ID_NOT_FOUND:
        raise _no_group(name)
    if classic.error is not ErrorCode.NONE:
        raise RefusedError(classic.error, f"Group '{name}' is temporarily unavailable")
    members = [_classic_member(member) for member in classic.members]
    return _Described("classic", str(classic.state), classic.protocol_name, members)


def _classic_member(member: DescribedMember) -> MemberShown:
    """Metadata that is not in the consumer protocol is shown as empty."""
    read = read_assignment(member.assignment)
    assigned = {} if read is None else read.partitions
    return MemberShown(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=_text(member.client_id),
        client_host=member.client_host,
        topics=sorted(subscribed_topics(member.subscription) or ()),
        assigned=[
            TopicAssigned(topic=topic, partitions=sorted(indexes))
            for topic, indexes in sorted(assigned.items())
        ],
    )


def _named(session: Session, assigned: Mapping[TopicId, frozenset[int]]) -> list[TopicAssigned]:
    found = []
    for topic_id, partitions in assigned.items():
        topic = session.topics.find_by_id(topic_id)
        # None: the topic was just deleted, or is not for this client.
        if topic is not None:
            found.append(TopicAssigned(topic=topic.name, partitions=sorted(partitions)))
    return sorted(found, key=lambda one: one.topic)


def _text(text: str) -> str:
    """JSON cannot represent invalid UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
