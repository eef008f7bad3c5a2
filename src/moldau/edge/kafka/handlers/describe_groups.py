"""DescribeGroups (15): state and members of groups."""

from functools import partial

from moldau.api.types import shown
from moldau.edge.kafka.authorized_operations import NOT_REQUESTED, on_group
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import handle_each
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_FROM = 6
"""The first version with error messages, too."""


async def handle(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    shows_rights = request.include_authorized_operations
    groups = await handle_each(
        request.groups,
        lambda group_id: _describe(call, group_id, shows_rights),
        partial(_refused, call),
    )
    return DescribeGroupsResponse(groups=groups)


def _refused(call: Call, group_id: str, error: RefusedError) -> DescribedGroup:
    return DescribedGroup(
        error_code=error.code,
        error_message=str(error) if call.version >= _NOT_FOUND_FROM else None,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _describe(call: Call, group_id: str, shows_rights: bool) -> DescribedGroup:
    try:
        group = call.session.groups.describe(group_id)
    except RefusedError as refused:
        return _refused(call, group_id, refused)
    error, message = group.error, None
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        if call.version < _NOT_FOUND_FROM:
            # Older clients know an unknown group by its state only.
            error = ErrorCode.NONE
        else:
            message = f"Group {shown(group_id)} not found"
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=on_group(call.session, group_id) if shows_rights else NOT_REQUESTED,
    )


API = Api(DescribeGroupsRequest, versions=(0, 6), handle=handle)
