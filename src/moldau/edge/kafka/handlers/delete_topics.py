"""DeleteTopics (20): deletes topics by name, or by id from version 6 on."""

from collections import Counter

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_STATES_FROM = 6


async def handle(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if call.version >= _STATES_FROM:
        topics = request.topics
    else:
        topics = [DeleteTopicState(name=name, topic_id=NO_TOPIC_ID) for name in request.topic_names]
    times_named = Counter(_key(topic) for topic in topics)
    distinct = {_key(topic): topic for topic in topics}
    return DeleteTopicsResponse(
        responses=[
            await _delete(call, topic, is_repeated=times_named[key] > 1)
            async for key, topic in turns_of(distinct.items())
        ]
    )


def _key(topic: DeleteTopicState) -> tuple[str | None, bytes]:
    return topic.name, bytes(topic.topic_id)


async def _delete(
    call: Call, topic: DeleteTopicState, *, is_repeated: bool
) -> DeletableTopicResult:
    by_id = topic.topic_id != NO_TOPIC_ID
    topics = call.session.topics
    result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
    try:
        found = None
        if by_id:
            found = topics.find_by_id(topic.topic_id)
        elif topic.name is not None:
            found = topics.find(topic.name)
        if found is not None:
            result.name, result.topic_id = found.name, found.topic_id
        if is_repeated:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "The topic is given twice")
        if by_id and topic.name is not None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Give a topic name or id, not both")
        await topics.delete(name=topic.name, topic_id=TopicId(topic.topic_id) if by_id else None)
    except RefusedError as error:
        result.error_code = error.code
        result.error_message = str(error)
    return result


API = Api(DeleteTopicsRequest, versions=(1, 6), handle=handle)
