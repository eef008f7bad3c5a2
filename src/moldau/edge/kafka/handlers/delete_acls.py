"""DeleteAcls (31): deletes the access rules that match filters."""

from moldau.edge.kafka.acl_fields import attempt, filter_of
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import RefusedError
from moldau.security.acl import Acl, AclFilter
from moldau.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(call: Call, request: DeleteAclsRequest) -> DeleteAclsResponse:
    parsed = [attempt(filter_of, each) async for each in turns_of(request.filters)]
    filters = [each for each in parsed if isinstance(each, AclFilter)]
    security = call.session.security
    try:
        # Also if there is none: the client must be allowed to ask.
        results = iter(await call.session.decided(security.delete_acls(filters)))
    except RefusedError as error:
        return DeleteAclsResponse(filter_results=[_refused(error) for _ in parsed])
    return DeleteAclsResponse(
        filter_results=[
            _result(next(results) if isinstance(each, AclFilter) else each) for each in parsed
        ]
    )


def _result(result: list[Acl] | RefusedError) -> DeleteAclsFilterResult:
    if isinstance(result, RefusedError):
        return _refused(result)
    return DeleteAclsFilterResult(
        matching_acls=[
            DeleteAclsMatchingAcl(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in result
        ]
    )


def _refused(error: RefusedError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=str(error), matching_acls=[])


API = Api(DeleteAclsRequest, versions=(1, 3), handle=handle)
