"""DescribeConfigs (32): settings of topics and brokers, with where each value comes from."""

from moldau.control.config_service import ResourceKind
from moldau.edge.kafka.api import Api, Call
from moldau.metadata.topic_configs import ConfigEntry
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from moldau.wire.registry import ApiKey


def handle(call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe(call, request, resource) for resource in request.resources]
    )


def _describe(
    call: Call, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        _check_broker(call, resource)
        entries = call.broker.configs.describe(resource.resource_type, resource.resource_name)
    except RefusedError as error:
        result.error_code = error.code
        result.error_message = str(error)
        return result
    # No list and an empty one both mean all of them.
    wanted = set(resource.configuration_keys or ())
    result.configs = [
        _shown(entry, request) for entry in entries if not wanted or entry.name in wanted
    ]
    return result


def _check_broker(call: Call, resource: DescribeConfigsResource) -> None:
    """What a broker was started with only itself knows; clients ask it, as in Kafka."""
    name = resource.resource_name
    if resource.resource_type != ResourceKind.BROKER or not name.isdecimal():
        return
    me = call.broker.broker_id
    if int(name) != me and int(name) in call.broker.image.brokers:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"This is broker {me}; ask broker {int(name)} itself"
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


API = Api(
    key=ApiKey.DESCRIBE_CONFIGS,
    request=DescribeConfigsRequest,
    versions=(1, 4),
    handle=handle,
    note="of topics and brokers",
)
