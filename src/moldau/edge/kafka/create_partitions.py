"""CreatePartitions (37): add partitions to topics."""

from collections import Counter

from moldau.edge.kafka.api import Api, Call
from moldau.edge.kafka.placement import await_leaders
from moldau.metadata.config_types import shown
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from moldau.wire.registry import ApiKey


async def handle(call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    results = []
    for name, topic in topics.items():
        result = CreatePartitionsTopicResult(name=name)
        results.append(result)
        assignments = topic.assignments
        try:
            if times_named[name] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"Topic {shown(name)} is named twice")
            await call.broker.topics.add_partitions(
                name,
                topic.count,
                None if assignments is None else [each.broker_ids for each in assignments],
                validate_only=request.validate_only,
            )
        except RefusedError as error:
            result.error_code = error.code
            result.error_message = str(error)
    await await_leaders(call.broker, [result.name for result in results if not result.error_code])
    return CreatePartitionsResponse(results=results)


API = Api(
    key=ApiKey.CREATE_PARTITIONS, request=CreatePartitionsRequest, versions=(0, 3), handle=handle
)
