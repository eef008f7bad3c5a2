"""ListGroups (16): the groups that this broker coordinates."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


@in_turns
def handle(call: Call, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
    error, groups = call.session.groups.list_groups(request.states_filter, request.types_filter)
    listed = []
    for group in groups:
        yield
        listed.append(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
        )
    return ListGroupsResponse(error_code=error, groups=listed)


API = Api(ListGroupsRequest, versions=(0, 5), handle=handle)
