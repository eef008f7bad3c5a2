"""/api/v1/topic-settings: what topics may set; /api/v1/topics/{topic}/groups: who consumes one."""

from collections.abc import Mapping

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.cluster_queries import PartitionExtent
from moldau.api.guarded.configs import TopicSetting
from moldau.api.topic_groups import GroupOfTopic
from moldau.edge.http.query_parameters import page_size, read_text
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of
from moldau.model.ids import PartitionIndex, TopicPartition


class SettingMeaning(Struct, frozen=True, kw_only=True):
    """A setting that topics may have."""

    name: str
    type: str
    default: str | None
    """Of this cluster."""
    doc: str
    values: list[str] | None
    """null: any of the type."""
    unit: str | None
    read_only: bool
    """Set by a command of Moldau, not by people."""
    has_effect: bool
    """false: stored for tools that expect it."""


class TopicSettings(Struct, frozen=True, kw_only=True):
    settings: list[SettingMeaning]


class TopicGroupPosition(Struct, frozen=True, kw_only=True):
    partition: int
    committed: int
    end_offset: int | None
    lag: int | None
    """null while the leader of the partition does not respond."""


class TopicGroup(Struct, frozen=True, kw_only=True):
    group: str
    state: str
    member_count: int
    """Of the group, whatever they consume."""
    lag: int | None
    """null if that of a partition is unknown, or nothing is committed yet."""
    lag_seconds: float | None
    """How long ago the first record that was not processed was stored; null: not known."""
    partitions: list[TopicGroupPosition]
    """Those with a committed offset."""


class TopicGroupList(Struct, frozen=True, kw_only=True):
    groups: list[TopicGroup]
    next: str | None
    silent: list[int]
    """Brokers that did not respond: the groups that they coordinate are missing."""


def routes() -> list[Route]:
    async def settings(request: Request) -> Response:
        check_query(request)
        found = session_of(request).configs.topic_settings()
        return respond(TopicSettings(settings=[_meaning(each) for each in found]))

    async def groups(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), read_text(request, "after")
        session = session_of(request)
        topic = session.topics.get(request.path_params["topic"])
        found = await session.queries.groups_of_topic(topic, after, size)
        extents = await session.queries.extents(
            {
                TopicPartition(topic.name, PartitionIndex(index))
                for group in found.groups
                for index, _ in group.offsets
            }
        )
        ends: dict[int, PartitionExtent] = {
            partition.partition: extent for partition, extent in extents.items()
        }
        shown = [_shown(group, ends) for group in found.groups]
        return respond(TopicGroupList(groups=shown, next=found.next, silent=list(found.silent)))

    return [
        Route("/api/v1/topic-settings", settings, methods=["GET"]),
        Route("/api/v1/topics/{topic}/groups", groups, methods=["GET"]),
    ]


def _meaning(setting: TopicSetting) -> SettingMeaning:
    definition = setting.definition
    return SettingMeaning(
        name=definition.name,
        type=definition.type.name.lower(),
        default=setting.default,
        doc=definition.meaning,
        values=list(definition.values) or None,
        unit=definition.unit,
        read_only=definition.is_for_tools,
        has_effect=definition.has_effect,
    )


def _shown(group: GroupOfTopic, extents: Mapping[int, PartitionExtent]) -> TopicGroup:
    positions = []
    for partition, committed in group.offsets:
        extent = extents.get(partition)
        positions.append(
            TopicGroupPosition(
                partition=partition,
                committed=committed,
                end_offset=None if extent is None else extent.end,
                lag=None if extent is None else max(0, extent.end - committed),
            )
        )
    known = [one.lag for one in positions if one.lag is not None]
    lag = sum(known) if known and len(known) == len(positions) else None
    return TopicGroup(
        group=group.group_id,
        state=group.state,
        member_count=group.member_count,
        lag=lag,
        lag_seconds=0.0 if lag == 0 else group.lag_seconds,
        partitions=positions,
    )
