"""CreateAcls (30): adds access rules."""

from moldau.edge.kafka.acl_fields import acl_of, attempt
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import RefusedError
from moldau.security.acl import Acl
from moldau.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(call: Call, request: CreateAclsRequest) -> CreateAclsResponse:
    parsed = [attempt(acl_of, creation) async for creation in turns_of(request.creations)]
    acls = [each for each in parsed if isinstance(each, Acl)]
    security = call.session.security
    try:
        # Also if there is none: the client must be allowed to ask.
        refusals = iter(await call.session.decided(security.create_acls(acls)))
    except RefusedError as error:
        return CreateAclsResponse(results=[_result(error) for _ in parsed])
    return CreateAclsResponse(
        results=[_result(next(refusals) if isinstance(each, Acl) else each) for each in parsed]
    )


def _result(refusal: RefusedError | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult()
    return AclCreationResult(error_code=refusal.code, error_message=str(refusal))


API = Api(CreateAclsRequest, versions=(1, 3), handle=handle)
