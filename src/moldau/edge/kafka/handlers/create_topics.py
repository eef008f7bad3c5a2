"""CreateTopics (19): creates topics, or validates the request only."""

from collections import Counter

from moldau.api.types import Topic, shown
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.edge.kafka.partition_leaders import ELECTION_SECONDS_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_CONFIGS_FROM = 5


async def handle(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    results = []
    created_names = []
    async for name, topic in turns_of(topics.items()):
        try:
            if times_named[name] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"Topic {shown(name)} is given twice")
            created = await _create(call, topic, request.validate_only)
        except RefusedError as error:
            results.append(
                CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))
            )
        else:
            results.append(_described(call, created, request.validate_only))
            created_names.append(name)
    await call.session.topics.await_leaders(created_names, ELECTION_SECONDS_MAX)
    return CreateTopicsResponse(topics=results)


async def _create(call: Call, topic: CreatableTopic, validate_only: bool) -> Topic:
    assignments = {each.partition_index: each.broker_ids for each in topic.assignments}
    if len(assignments) < len(topic.assignments):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The assignment contains a partition twice"
        )
    return await call.session.topics.create(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments or None,
        configs={config.name: config.value for config in topic.configs},
        validate_only=validate_only,
    )


def _described(call: Call, topic: Topic, validate_only: bool) -> CreatableTopicResult:
    result = CreatableTopicResult(
        name=topic.name,
        # A validated topic has no id yet.
        topic_id=NO_TOPIC_ID if validate_only else topic.topic_id,
        configs=[],
    )
    if call.version < _CONFIGS_FROM:
        return result
    try:
        entries = call.session.configs.describe_topic(topic)
    except RefusedError as error:
        # Created, but its client may not know how.
        result.topic_config_error_code = error.code
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = topic.replication_factor
    result.configs = [
        CreatedTopicConfig(
            name=entry.name,
            value=None if entry.sensitive else entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in entries
    ]
    return result


API = Api(CreateTopicsRequest, versions=(2, 7), handle=handle)
