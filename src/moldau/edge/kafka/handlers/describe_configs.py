"""DescribeConfigs (32): settings of topics and brokers, with the source of each value."""

from moldau.api.types import ConfigEntry, ResourceKind
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, different, in_turns
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@in_turns
def handle(call: Call, request: DescribeConfigsRequest) -> Steps[DescribeConfigsResponse]:
    results = []
    for resource in different(request.resources, _key):
        yield
        results.append(_describe(call, request, resource))
    return DescribeConfigsResponse(results=results)


def _key(resource: DescribeConfigsResource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _describe(
    call: Call, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        entries = call.session.configs.describe(resource.resource_type, resource.resource_name)
        _check_broker(call, resource)
    except RefusedError as error:
        result.error_code = error.code
        result.error_message = str(error)
        return result
    # Null and an empty list both mean all settings.
    wanted = set(resource.configuration_keys or ())
    result.configs = [
        _shown(entry, request) for entry in entries if not wanted or entry.name in wanted
    ]
    return result


def _check_broker(call: Call, resource: DescribeConfigsResource) -> None:
    """Only the broker itself knows its start configuration, as in Kafka."""
    name = resource.resource_name
    if resource.resource_type != ResourceKind.BROKER or not name.isdecimal():
        return
    me = call.session.broker_id
    if int(name) != me and int(name) in call.session.cluster.brokers:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"This is broker {me}; send it to broker {int(name)}"
        )


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(
                name=synonym.name,
                value=None if entry.sensitive else synonym.value,
                source=synonym.source,
            )
            for synonym in entry.synonyms
        ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=None if entry.sensitive else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


API = Api(DescribeConfigsRequest, versions=(1, 4), handle=handle, note="of topics and brokers")
