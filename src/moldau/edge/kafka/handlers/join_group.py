"""JoinGroup (11): joins a group; replies when its next generation is complete."""

from moldau.api.types import Join, JoinResult
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_REBALANCE_TIMEOUT_FROM = 1
_MEMBER_ID_REQUIRED_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9


async def handle(call: Call, request: JoinGroupRequest) -> JoinGroupResponse:
    def event(request_id: int) -> Join:
        return Join(
            request_id=request_id,
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=call.client_id or "",
            # Kafka adds the slash, and tools strip it.
            client_host=f"/{call.client_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if call.version >= _REBALANCE_TIMEOUT_FROM
            else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((each.name, each.metadata) for each in request.protocols),
            member_id_required=call.version >= _MEMBER_ID_REQUIRED_FROM,
            can_skip_assignment=call.version >= _SKIP_ASSIGNMENT_FROM,
        )

    try:
        result = await call.session.groups.join(request.group_id, event)
    except RefusedError as error:
        result = JoinResult(error=error.code, member_id=request.member_id)
    protocol_name = result.protocol_name
    if protocol_name is None and call.version < _NULL_PROTOCOL_FROM:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.subscription,
            )
            for member in result.members
        ],
    )


API = Api(JoinGroupRequest, versions=(0, 9), handle=handle)
