"""OffsetFetch (9): the committed offsets of one group, or of several from version 8 on."""

from collections.abc import Iterable, Mapping
from functools import partial

from moldau.api.types import NO_OFFSET, CommittedOffset, FetchOffsetsResult
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, different, finish, query_each, refuse_too_many
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, NO_TOPIC_ID, PartitionIndex, TopicPartition
from moldau.security.acl import Operation, ResourceType
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseGroupPartition,
    OffsetFetchResponseGroupTopic,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

_ERROR_FROM = 2
_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10
_Answer = Steps[OffsetFetchResponseGroup]
"""Nothing waits in them: groups are fetched concurrently, and answered one after the other."""


async def handle(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if call.version >= _GROUPS_FROM:
        # Concurrently: each may need an RPC to other brokers, which is shared by all.
        answers = await query_each(
            different(request.groups, _key),
            partial(_answer, call, stable=request.require_stable),
            _refused,
        )
        return await finish(_respond(answers))
    group = _in_new_form(request)
    answer = await _answer(call, group, stable=request.require_stable)
    return await finish(_respond_in_old_form(call, group, answer))


def _respond(answers: Iterable[_Answer]) -> Steps[OffsetFetchResponse]:
    groups = []
    for answer in answers:
        groups.append((yield from answer))
    return OffsetFetchResponse(groups=groups)


def _respond_in_old_form(
    call: Call, group: OffsetFetchRequestGroup, answer: _Answer
) -> Steps[OffsetFetchResponse]:
    found = yield from answer
    if found.error_code and call.version < _ERROR_FROM:
        # The response has no error field for the group, so each partition carries it.
        code = ErrorCode(found.error_code)
        found.topics = [_failed(topic, code) for topic in group.topics or ()]
    topics = []
    for topic in found.topics:
        topics.append((yield from _in_old_form(topic)))
    return OffsetFetchResponse(error_code=found.error_code, topics=topics)


def _key(group: OffsetFetchRequestGroup) -> tuple[str, int]:
    """All offsets of a group are returned once; those that are named are as many as in the request,
    and a group may be named with some topics here and others there."""
    return group.group_id, 0 if group.topics is None else id(group)


def _refused(group: OffsetFetchRequestGroup, error: RefusedError) -> _Answer:
    yield
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=error.code)


async def _answer(call: Call, group: OffsetFetchRequestGroup, *, stable: bool) -> _Answer:
    """`stable`: offsets that an open transaction may replace are UNSTABLE_OFFSET_COMMIT."""
    try:
        return await _fetch(call, group, stable=stable)
    except RefusedError as error:
        return _refused(group, error)


async def _fetch(call: Call, group: OffsetFetchRequestGroup, *, stable: bool) -> _Answer:
    by_id = call.version >= _TOPIC_IDS_FROM
    fetch = partial(
        call.session.groups.fetch_offsets,
        group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
    )
    if group.topics is None:
        result = await fetch(None)
        topics = _all_topics(call, _stable_offsets(result, stable=stable), by_id)
    else:
        refuse_too_many(sum(1 + len(topic.partition_indexes) for topic in group.topics))
        names = [call.topic_name(topic.topic_id) if by_id else topic.name for topic in group.topics]
        wanted = [
            TopicPartition(name, PartitionIndex(index))
            for name, topic in zip(names, group.topics, strict=True)
            if name is not None
            for index in topic.partition_indexes
        ]
        # Before it waits: a topic that the client may describe from then on was not fetched.
        may = partial(call.session.may, Operation.DESCRIBE, ResourceType.TOPIC)
        hidden = {name for name in names if name is not None and not may(name)}
        result = await fetch(wanted)
        offsets = _stable_offsets(result, stable=stable)
        topics = _named_topics(zip(names, group.topics, strict=True), hidden, offsets)
    if result.error is not ErrorCode.NONE:
        raise RefusedError(result.error)
    return _found(group, topics)


def _found(
    group: OffsetFetchRequestGroup, steps: Steps[list[OffsetFetchResponseGroupTopic]]
) -> _Answer:
    topics = yield from steps
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _named_topics(
    wanted: Iterable[tuple[str | None, OffsetFetchRequestGroupTopic]],
    hidden: set[str],
    offsets: Mapping[TopicPartition, CommittedOffset | None],
) -> Steps[list[OffsetFetchResponseGroupTopic]]:
    topics = []
    for name, topic in wanted:
        yield
        topics.append(
            _failed(topic, ErrorCode.UNKNOWN_TOPIC_ID)
            if name is None
            else _failed(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if name in hidden
            else _filled(topic, name, offsets)
        )
    return topics


def _stable_offsets(
    result: FetchOffsetsResult, *, stable: bool
) -> Mapping[TopicPartition, CommittedOffset | None]:
    """None for offsets that are not stable."""
    if not stable or not result.unstable:
        return result.offsets
    return {**result.offsets, **dict.fromkeys(result.unstable)}


def _all_topics(
    call: Call, offsets: Mapping[TopicPartition, CommittedOffset | None], by_id: bool
) -> Steps[list[OffsetFetchResponseGroupTopic]]:
    topics: dict[str, OffsetFetchResponseGroupTopic] = {}
    for partition in sorted(offsets):
        yield
        answer = topics.get(partition.topic)
        if answer is None:
            known = call.session.topics.find(partition.topic)
            if known is None and by_id:
                # Just deleted: it has no id any more.
                continue
            answer = topics[partition.topic] = OffsetFetchResponseGroupTopic(
                name=partition.topic,
                topic_id=NO_TOPIC_ID if known is None else known.topic_id,
                partitions=[],
            )
        answer.partitions.append(_filled_partition(partition.partition, partition, offsets))
    return list(topics.values())


def _filled(
    topic: OffsetFetchRequestGroupTopic,
    name: str,
    offsets: Mapping[TopicPartition, CommittedOffset | None],
) -> OffsetFetchResponseGroupTopic:
    return OffsetFetchResponseGroupTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            _filled_partition(index, TopicPartition(name, PartitionIndex(index)), offsets)
            for index in topic.partition_indexes
        ],
    )


def _filled_partition(
    index: int, partition: TopicPartition, offsets: Mapping[TopicPartition, CommittedOffset | None]
) -> OffsetFetchResponseGroupPartition:
    committed = offsets.get(partition)
    if committed is None:
        is_pending = partition in offsets
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if is_pending else ErrorCode.NONE
        return _empty_partition(index, code)
    return OffsetFetchResponseGroupPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _failed(topic: OffsetFetchRequestGroupTopic, code: ErrorCode) -> OffsetFetchResponseGroupTopic:
    return OffsetFetchResponseGroupTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[_empty_partition(index, code) for index in topic.partition_indexes],
    )


def _empty_partition(index: int, code: ErrorCode) -> OffsetFetchResponseGroupPartition:
    return OffsetFetchResponseGroupPartition(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_EPOCH,
        metadata="",
        error_code=code,
    )


def _in_new_form(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestGroupTopic(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ],
    )


def _in_old_form(topic: OffsetFetchResponseGroupTopic) -> Steps[OffsetFetchResponseTopic]:
    partitions = []
    for partition in topic.partitions:
        yield
        partitions.append(
            OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
        )
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


API = Api(OffsetFetchRequest, versions=(1, 10), handle=handle)
