"""IncrementalAlterConfigs (44): sets, deletes, appends to or subtracts from single settings."""

from collections import Counter

from moldau.api.types import ConfigChange, ConfigOperation, shown
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResourceResponse,
)

_OPERATIONS = {operation.value: operation for operation in ConfigOperation}


async def handle(
    call: Call, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    times_named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    responses = []
    async for (kind, name), resource in turns_of(resources.items()):
        response = IncrementalConfigsResourceResponse(resource_type=kind, resource_name=name)
        responses.append(response)
        try:
            if times_named[kind, name] > 1:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST, f"Resource {shown(name)} is given twice"
                )
            await call.session.configs.alter(
                kind,
                name,
                [_change(config) for config in resource.configs],
                validate_only=request.validate_only,
            )
        except RefusedError as error:
            response.error_code = error.code
            response.error_message = str(error)
    return IncrementalAlterConfigsResponse(responses=responses)


def _change(config: IncrementalConfig) -> ConfigChange:
    operation = _OPERATIONS.get(config.config_operation)
    if operation is None:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation {config.config_operation} on {shown(config.name)}",
        )
    return ConfigChange(name=config.name, operation=operation, value=config.value)


API = Api(
    IncrementalAlterConfigsRequest, versions=(0, 1), handle=handle, note="of topics and brokers"
)
