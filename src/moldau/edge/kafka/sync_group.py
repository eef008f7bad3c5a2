"""SyncGroup (14): the leader hands in the assignment, everybody takes their part of it."""

from moldau.edge.kafka.api import Api, Call
from moldau.groups.events import Sync
from moldau.groups.results import SyncResult
from moldau.model.errors import RefusedError
from moldau.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.wire.registry import ApiKey


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
        result = await call.broker.groups.ask(request.group_id, event, SyncResult)
    except RefusedError as error:
        result = SyncResult(error=error.code)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API = Api(key=ApiKey.SYNC_GROUP, request=SyncGroupRequest, versions=(0, 5), handle=handle)
