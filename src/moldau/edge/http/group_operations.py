"""The operations of `group_changes`, for the OpenAPI document."""

from typing import Final

from moldau.edge.http.group_changes import GroupDeleted, GroupReset, ResetWanted
from moldau.edge.http.operation import Operation

GROUP_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/api/v1/groups/{group}/reset"): Operation(
        "resetGroup",
        "Set the committed offsets of a group in one topic, or preview it",
        {200: GroupReset},
        {},
        body=ResetWanted,
        refusals=(404, 409),
    ),
    ("DELETE", "/api/v1/groups/{group}"): Operation(
        "deleteGroup",
        "Delete a group without members, with its committed offsets",
        {200: GroupDeleted},
        {},
        refusals=(404, 409),
    ),
}
