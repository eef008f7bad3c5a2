"""ConsumerGroupHeartbeat (68): join, stay in and leave a consumer group (KIP-848)."""

from collections import defaultdict
from collections.abc import Mapping

from moldau.api.types import QUEUE_ASSIGNOR, ConsumerHeartbeat, ConsumerHeartbeatResult
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TopicId
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignedTopic,
    HeartbeatAssignment,
)

_CLIENT_MAKES_ID_FROM = 1


async def handle(
    call: Call, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    def event(request_id: int) -> ConsumerHeartbeat:
        topics = request.subscribed_topic_names
        return ConsumerHeartbeat(
            request_id=request_id,
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack=request.rack_id,
            client_id=call.client_id or "",
            client_host=f"/{call.client_host}",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=None if topics is None else tuple(topics),
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=_owned(request),
            makes_member_id=call.version >= _CLIENT_MAKES_ID_FROM,
        )

    try:
        if request.server_assignor == QUEUE_ASSIGNOR:
            # Queue groups are joined through the queue service, which tracks deliveries.
            raise RefusedError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {QUEUE_ASSIGNOR} is only for queues.",
            )
        result = await call.session.groups.consumer_heartbeat(request.group_id, event)
    except RefusedError as error:
        result = ConsumerHeartbeatResult(error=error.code, message=str(error) or None)
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assignment(result.assignment),
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Mapping[TopicId, frozenset[int]] | None:
    if request.topic_partitions is None:
        return None
    owned: defaultdict[TopicId, set[int]] = defaultdict(set)
    for topic in request.topic_partitions:
        owned[TopicId(topic.topic_id)].update(topic.partitions)
    return {topic: frozenset(indexes) for topic, indexes in owned.items() if indexes}


def _assignment(assignment: Mapping[TopicId, frozenset[int]]) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatAssignedTopic(topic_id=topic, partitions=sorted(indexes))
            for topic, indexes in sorted(assignment.items())
        ]
    )


API = Api(
    ConsumerGroupHeartbeatRequest,
    versions=(0, 1),
    handle=handle,
    note="A group has members of one protocol at a time.",
)
