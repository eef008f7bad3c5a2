"""CreatePartitions (37): adds partitions to topics."""

from collections import Counter

from moldau.api.types import shown
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.edge.kafka.partition_leaders import ELECTION_SECONDS_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


async def handle(call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    results = []
    async for name, topic in turns_of(topics.items()):
        result = CreatePartitionsTopicResult(name=name)
        results.append(result)
        assignments = topic.assignments
        try:
            if times_named[name] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"Topic {shown(name)} is given twice")
            await call.session.topics.add_partitions(
                name,
                topic.count,
                None if assignments is None else [each.broker_ids for each in assignments],
                validate_only=request.validate_only,
            )
        except RefusedError as error:
            result.error_code = error.code
            result.error_message = str(error)
    created = [result.name for result in results if not result.error_code]
    await call.session.topics.await_leaders(created, ELECTION_SECONDS_MAX)
    return CreatePartitionsResponse(results=results)


API = Api(CreatePartitionsRequest, versions=(0, 3), handle=handle)
