"""Metadata (3): brokers, topics, partitions and leaders; auto-creates topics if enabled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from moldau.api.types import Topic
from moldau.edge.concurrent_work import run_each
from moldau.edge.kafka.authorized_operations import NOT_REQUESTED, on_cluster, on_topic
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, finish, in_turns
from moldau.edge.kafka.partition_leaders import ELECTION_SECONDS_MAX, controller_of, placements_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID, BrokerId
from moldau.security.acl import Operation, ResourceType
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_EMPTY_MEANS_NONE_FROM = 1
_NULL_NAME_FROM = 12
_CREATE_MS_MAX = 5000
"""Later requests of the connection wait as long."""
_PARTITIONS_PER_STEP = 50
_Wide = tuple[Topic, list[MetadataResponsePartition]]
"""A topic with more partitions than that, and those that are described."""


@in_turns
def handle(
    call: Call, request: MetadataRequest
) -> Steps[MetadataResponse | Coroutine[Any, Any, MetadataResponse]]:
    topics = request.topics
    if topics is None or (not topics and call.version < _EMPTY_MEANS_NONE_FROM):
        alive = call.session.cluster.alive
        found = []
        wide: list[_Wide] = []
        for topic in call.session.topics.all():
            yield
            found.append(_describe(call, request, topic, alive, wide))
        yield from _describe_rest(call, wide, alive)
        return _respond(call, request, found)
    if len(topics) > 1:
        topics = list({_key(wanted): wanted for wanted in topics}.values())
    if request.allow_auto_topic_creation and call.session.auto_create_topics:
        missing = []
        for wanted in topics:
            yield
            if wanted.name is not None and _is_missing(call, wanted.name):
                missing.append(wanted.name)
        if missing:
            return _create_then_respond(call, request, topics, missing)
    return (yield from _look_up_each(call, request, topics, {}))


def _key(wanted: MetadataRequestTopic) -> str | bytes:
    """What the topic is looked up by, see `_look_up`."""
    if wanted.name is None or wanted.topic_id != NO_TOPIC_ID:
        return wanted.topic_id
    return wanted.name


def _is_missing(call: Call, name: str) -> bool:
    """Not so if the client may not know whether the topic exists: it is refused later."""
    may_know = call.session.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
    return may_know and call.session.topics.find(name) is None


async def _create_then_respond(
    call: Call, request: MetadataRequest, topics: list[MetadataRequestTopic], missing: list[str]
) -> MetadataResponse:
    async def create(name: str) -> None:
        await call.session.topics.ensure(name)

    refusals = await run_each(create, missing, _CREATE_MS_MAX)
    await call.session.topics.await_leaders(missing, ELECTION_SECONDS_MAX)
    refused: dict[str, ErrorCode] = {
        # It may still be created: this is the code that makes every client retry.
        name: ErrorCode.LEADER_NOT_AVAILABLE
        if refusal.code is ErrorCode.REQUEST_TIMED_OUT
        else refusal.code
        for name, refusal in zip(missing, refusals, strict=True)
        if refusal is not None
    }
    return await finish(_look_up_each(call, request, topics, refused))


def _look_up_each(
    call: Call,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    refused: dict[str, ErrorCode],
) -> Steps[MetadataResponse]:
    alive = call.session.cluster.alive
    found = []
    wide: list[_Wide] = []
    for wanted in topics:
        yield
        found.append(_look_up(call, request, wanted, refused, alive, wide))
    yield from _describe_rest(call, wide, alive)
    return _respond(call, request, found)


def _look_up(
    call: Call,
    request: MetadataRequest,
    wanted: MetadataRequestTopic,
    refused: dict[str, ErrorCode],
    alive: frozenset[BrokerId],
    wide: list[_Wide],
) -> MetadataResponseTopic:
    topics = call.session.topics
    try:
        if wanted.name is None or wanted.topic_id != NO_TOPIC_ID:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            topic = topics.find_by_id(wanted.topic_id)
        else:
            unknown = refused.get(wanted.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic = topics.find(wanted.name)
        if topic is not None:
            return _describe(call, request, topic, alive, wide)
    except RefusedError as error:
        unknown = error.code
    name = wanted.name
    if name is None and call.version < _NULL_NAME_FROM:
        name = ""
    return MetadataResponseTopic(
        error_code=unknown, name=name, topic_id=wanted.topic_id, partitions=[]
    )


def _describe(
    call: Call,
    request: MetadataRequest,
    topic: Topic,
    alive: frozenset[BrokerId],
    wide: list[_Wide],
) -> MetadataResponseTopic:
    """With its first partitions; if it has more, it is added to `wide`."""
    partitions = _partitions(call, topic, 0, alive)
    if len(partitions) < len(topic.partitions):
        wide.append((topic, partitions))
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=on_topic(call.session, topic.name)
        if request.include_topic_authorized_operations
        else NOT_REQUESTED,
    )


def _describe_rest(call: Call, wide: list[_Wide], alive: frozenset[BrokerId]) -> Steps[None]:
    for topic, partitions in wide:
        while len(partitions) < len(topic.partitions):
            yield
            partitions += _partitions(call, topic, len(partitions), alive)


def _partitions(
    call: Call, topic: Topic, first: int, alive: frozenset[BrokerId]
) -> list[MetadataResponsePartition]:
    """As many as one step may describe."""
    some = topic.partitions[first : first + _PARTITIONS_PER_STEP]
    return [
        MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=offline,
        )
        for index, (error, leader, epoch, replicas, in_sync, offline) in enumerate(
            placements_of(call.session, topic, some, alive), first
        )
    ]


def _respond(
    call: Call, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    session = call.session
    if session.cluster.is_cut_off and any(
        partition.error_code for topic in topics for partition in topic.partitions
    ):
        # Clients would ask this broker again and again, but another one may know the leaders.
        asyncio.get_running_loop().call_soon(call.connection.drain)
    return MetadataResponse(
        brokers=[
            MetadataBroker(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in session.cluster.brokers.values()
        ],
        cluster_id=session.cluster.cluster_id,
        controller_id=controller_of(session),
        topics=topics,
        cluster_authorized_operations=on_cluster(session)
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )


API = Api(
    MetadataRequest,
    versions=(0, 13),
    handle=handle,
    note="lists every registered broker, also one that is down",
)
