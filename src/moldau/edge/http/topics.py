"""/api/v1/topics and /api/v1/brokers: list and describe; create and delete topics."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.session import Session
from moldau.api.types import INT_MAX, ConfigEntry, ResourceKind, Topic
from moldau.edge.http.methods import by_method
from moldau.edge.http.query_parameters import (
    PAGE_SIZE,
    page_size,
    parse_int,
    read_flag,
    read_int,
    read_search,
    read_text,
    take_page,
)
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.resources import (
    BrokerList,
    BrokerSetting,
    BrokerShown,
    PartitionShown,
    Setting,
    TopicDeleted,
    TopicList,
    TopicShown,
)
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.rights import may_with_topic
from moldau.edge.http.topic_list import list_topics
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicPartition
from moldau.security.acl import Operation, ResourceType


class TopicWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that creates a topic; -1 means the broker's default."""

    name: str
    partitions: Annotated[int, Meta(ge=-1, le=INT_MAX)] = -1
    replication_factor: Annotated[int, Meta(ge=-1, le=INT_MAX)] = -1
    configs: dict[str, str] = {}
    validate_only: bool = False


_topic_wanted: Final = msgspec.json.Decoder(TopicWanted)


def routes() -> list[Route]:
    async def create(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _topic_wanted.decode)
        session = session_of(request)
        made = await session.decided(
            session.topics.create(
                wanted.name,
                partitions=wanted.partitions,
                replication_factor=wanted.replication_factor,
                configs=wanted.configs,
                validate_only=wanted.validate_only,
            )
        )
        if wanted.validate_only:
            return respond(await show_topic(session, made, PAGE_SIZE, -1))
        await session.topics.await_leaders([made.name])
        shown = await show_topic(session, made, PAGE_SIZE, -1)
        return respond(shown, 201, {"location": f"/api/v1/topics/{made.name}"})

    async def delete(request: Request) -> Response:
        check_query(request)
        session = session_of(request)
        found = session.topics.get(request.path_params["topic"])
        # By id, so that a new topic of the same name is not deleted.
        await session.decided(session.topics.delete(topic_id=found.topic_id))
        return respond(TopicDeleted(name=found.name, id=found.topic_id.hex()))

    async def topics(request: Request) -> Response:
        check_query(request, "limit", "after", "internal", "search", "stats")
        size, after = page_size(request), read_text(request, "after")
        with_internal, fits = read_flag(request, "internal"), read_search(request)
        with_stats = read_flag(request, "stats")
        session = session_of(request)
        wanted = (
            topic
            for topic in sorted(session.topics.all(), key=attrgetter("name"))
            if (after is None or topic.name > after)
            and (with_internal or not topic.internal)
            and fits(topic.name)
        )
        page, has_more = take_page(wanted, size)
        listed = await list_topics(session, page, with_stats=with_stats)
        return respond(TopicList(topics=listed, next=page[-1].name if has_more else None))

    async def topic(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), read_int(request, "after", least=-1, most=INT_MAX)
        session = session_of(request)
        found = session.topics.get(request.path_params["topic"])
        return respond(await show_topic(session, found, size, -1 if after is None else after))

    async def brokers(request: Request) -> Response:
        check_query(request, "limit", "after")
        size, after = page_size(request), read_int(request, "after", least=-1, most=INT_MAX)
        known = session_of(request).cluster.topology().brokers
        page, has_more = take_page((one for one in known if after is None or one.id > after), size)
        return respond(BrokerList(brokers=page, next=page[-1].id if has_more else None))

    async def one_broker(request: Request) -> Response:
        check_query(request)
        # Not parsed by the router, which fails on numbers of thousands of digits.
        wanted = parse_int(request.path_params["broker"])
        session = session_of(request)
        for one in session.cluster.topology().brokers:
            if one.id == wanted:
                if wanted != session.broker_id:
                    return relay_to(request, wanted)
                entries = session.configs.describe(ResourceKind.BROKER, str(wanted))
                return respond(BrokerShown(broker=one, configs=_broker_settings(entries)))
        raise RefusedError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {request.path_params['broker']}"
        )

    return [
        by_method("/api/v1/topics", GET=topics, POST=create),
        by_method("/api/v1/topics/{topic}", GET=topic, DELETE=delete),
        Route("/api/v1/brokers", brokers, methods=["GET"]),
        Route("/api/v1/brokers/{broker}", one_broker, methods=["GET"]),
    ]


async def show_topic(session: Session, topic: Topic, size: int, after: int) -> TopicShown:
    """The topic with a page of its partitions."""
    page, has_more = take_page(topic.partitions[after + 1 :], size)
    extents = await session.queries.extents(
        TopicPartition(topic.name, partition.index) for partition in page
    )
    shown = []
    known = session.cluster.leaders_and_in_sync(topic, page)
    for partition, (leader, in_sync) in zip(page, known, strict=True):
        extent = extents.get(TopicPartition(topic.name, partition.index))
        shown.append(
            PartitionShown(
                partition=partition.index,
                leader=leader.broker,
                leader_epoch=leader.epoch,
                replicas=list(partition.replicas),
                in_sync=list(in_sync),
                adding=list(partition.adding),
                removing=list(partition.removing),
                start_offset=None if extent is None else extent.start,
                end_offset=None if extent is None else extent.end,
                log_bytes=None if extent is None else extent.size_bytes,
            )
        )
    return TopicShown(
        name=topic.name,
        id=topic.topic_id.hex(),
        internal=topic.internal,
        partition_count=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=settings_of(_configs(session, topic)),
        partitions=shown,
        next=page[-1].index if has_more else None,
        may=may_with_topic(session, topic.name),
    )


def _configs(session: Session, topic: Topic) -> list[ConfigEntry]:
    """None for a client that may see the topic, but not its settings."""
    if not session.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return []
    return session.configs.describe_topic(topic)


def _broker_settings(entries: list[ConfigEntry]) -> list[BrokerSetting]:
    return [
        BrokerSetting(**asdict(setting), doc=entry.documentation, default=entry.default)
        for setting, entry in zip(settings_of(entries), entries, strict=True)
    ]


def settings_of(entries: Iterable[ConfigEntry]) -> list[Setting]:
    return [
        Setting(
            name=entry.name,
            value=None if entry.sensitive else entry.value,
            source=entry.source.name.lower(),
            type=entry.type.name.lower(),
            read_only=entry.read_only,
        )
        for entry in entries
    ]
