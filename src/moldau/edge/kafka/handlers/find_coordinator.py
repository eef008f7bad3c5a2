"""FindCoordinator (10): the coordinator of a group or a transactional id."""

from functools import partial

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import query_each
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)

GROUP, TRANSACTION = 0, 1
_KEYS_FROM = 4
_NO_NODE = -1


async def handle(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if call.version >= _KEYS_FROM:
        # Each may have to wait for an election.
        found_all = await query_each(
            list(dict.fromkeys(request.coordinator_keys)),
            partial(_find, call, request.key_type),
            _refused,
        )
        return FindCoordinatorResponse(coordinators=found_all)
    found = await _find(call, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find(call: Call, key_type: int, key: str) -> FoundCoordinator:
    try:
        if key_type == GROUP:
            coordinator = await call.session.groups.find_coordinator(key)
        elif key_type == TRANSACTION:
            coordinator = await call.session.transactions.find_coordinator(key)
        else:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}")
        broker = call.session.cluster.brokers.get(coordinator)
        if broker is None:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {coordinator} has left the cluster"
            )
    except RefusedError as error:
        return _refused(key, error)
    return FoundCoordinator(key=key, node_id=broker.id, host=broker.host, port=broker.port)


def _refused(key: str, error: RefusedError) -> FoundCoordinator:
    return FoundCoordinator(
        key=key,
        node_id=_NO_NODE,
        host="",
        port=_NO_NODE,
        error_code=error.code,
        error_message=str(error),
    )


API = Api(
    FindCoordinatorRequest,
    versions=(0, 6),
    handle=handle,
    note="groups and transactions; no share groups",
)
