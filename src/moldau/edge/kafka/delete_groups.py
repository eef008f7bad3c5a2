"""DeleteGroups (42): delete groups without members, with their offsets."""

from moldau.edge.kafka.api import Api, Call
from moldau.groups.events import DeleteGroups
from moldau.groups.results import DeleteGroupsResult
from moldau.model.errors import RefusedError
from moldau.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from moldau.wire.registry import ApiKey


async def handle(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    group_ids = tuple(dict.fromkeys(request.groups_names))
    try:
        result = await call.broker.groups.ask(
            lambda request_id: DeleteGroups(request_id=request_id, group_ids=group_ids),
            DeleteGroupsResult,
        )
    except RefusedError as error:
        result = DeleteGroupsResult(errors=tuple((each, error.code) for each in group_ids))
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in result.errors
        ]
    )


API = Api(key=ApiKey.DELETE_GROUPS, request=DeleteGroupsRequest, versions=(0, 2), handle=handle)
