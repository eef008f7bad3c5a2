"""SyncGroup (14): the leader submits the assignment, every member receives its part."""

from moldau.api.types import Sync, SyncResult
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(call: Call, request: SyncGroupRequest) -> SyncGroupResponse:
    def event(request_id: int) -> Sync:
        return Sync(
            request_id=request_id,
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        )

    try:
        result = await call.session.groups.sync(request.group_id, event)
    except RefusedError as error:
        result = SyncResult(error=error.code)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API = Api(SyncGroupRequest, versions=(0, 5), handle=handle)
