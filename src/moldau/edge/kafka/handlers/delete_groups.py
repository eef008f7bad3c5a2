"""DeleteGroups (42): deletes groups without members, and their offsets."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import refuse_too_many
from moldau.model.errors import RefusedError
from moldau.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    group_ids = list(dict.fromkeys(request.groups_names))
    try:
        refuse_too_many(len(group_ids))
        errors = await call.session.groups.delete_groups(group_ids)
    except RefusedError as error:
        errors = dict.fromkeys(group_ids, error.code)
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=errors[group_id])
            for group_id in group_ids
        ]
    )


API = Api(DeleteGroupsRequest, versions=(0, 2), handle=handle)
