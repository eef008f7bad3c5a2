"""Heartbeat (12): keeps a member in its group, and reports whether it must rejoin."""

from moldau.api.types import Heartbeat
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


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
        result = await call.session.groups.heartbeat(request.group_id, event)
    except RefusedError as error:
        return HeartbeatResponse(error_code=error.code)
    return HeartbeatResponse(error_code=result.error)


API = Api(HeartbeatRequest, versions=(0, 4), handle=handle)
