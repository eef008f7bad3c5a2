"""ListGroups (16): the groups that this broker coordinates."""

from moldau.edge.kafka.handler import Api, Call
from moldau.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    error, groups = call.session.groups.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups
        ],
    )


API = Api(ListGroupsRequest, versions=(0, 5), handle=handle)
