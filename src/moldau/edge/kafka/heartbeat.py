"""Heartbeat (12): a member says that it lives, and hears whether it must join again."""

from moldau.edge.kafka.api import Api, Call
from moldau.groups.events import Heartbeat
from moldau.groups.results import HeartbeatResult
from moldau.model.errors import RefusedError
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.wire.registry import ApiKey


async def handle(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    def event(request_id: int) -> Heartbeat:
        return Heartbeat(
            request_id=request_id,
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )

    try:
        result = await call.broker.groups.ask(request.group_id, event, HeartbeatResult)
    except RefusedError as error:
        return HeartbeatResponse(error_code=error.code)
    return HeartbeatResponse(error_code=result.error)


API = Api(key=ApiKey.HEARTBEAT, request=HeartbeatRequest, versions=(0, 4), handle=handle)
