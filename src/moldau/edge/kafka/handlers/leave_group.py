"""LeaveGroup (13): removes members from a group."""

from moldau.api.types import Leave, LeavingMember
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
)

_SEVERAL_MEMBERS_FROM = 3


async def handle(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if call.version >= _SEVERAL_MEMBERS_FROM:
        leaving = tuple(
            LeavingMember(member_id=member.member_id, instance_id=member.group_instance_id)
            for member in request.members
        )
    else:
        leaving = (LeavingMember(member_id=request.member_id),)
    try:
        result = await call.session.groups.leave(
            request.group_id,
            lambda request_id: Leave(
                request_id=request_id, group_id=request.group_id, members=leaving
            ),
        )
    except RefusedError as error:
        return LeaveGroupResponse(error_code=error.code)
    if call.version < _SEVERAL_MEMBERS_FROM:
        error_code = result.error
        if error_code is ErrorCode.NONE and result.members:
            error_code = result.members[0].error
        return LeaveGroupResponse(error_code=error_code)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            LeaveGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                error_code=member.error,
            )
            for member in result.members
        ],
    )


API = Api(LeaveGroupRequest, versions=(0, 5), handle=handle)
