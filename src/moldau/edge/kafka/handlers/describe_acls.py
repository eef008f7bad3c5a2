"""DescribeAcls (29): the access rules that match a filter, by resource."""

from moldau.edge.kafka.acl_fields import filter_of
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import RefusedError
from moldau.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


def handle(call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        acls = call.session.security.acls(filter_of(request))
    except RefusedError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error), resources=[])
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in acls:
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                acls=[],
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(resources=list(resources.values()))


API = Api(DescribeAclsRequest, versions=(1, 3), handle=handle)
