"""AlterConfigs (33): replaces all settings of topics or brokers."""

from collections import Counter

from moldau.api.types import shown
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    times_named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    responses = []
    async for (kind, name), resource in turns_of(resources.items()):
        response = AlterConfigsResourceResponse(resource_type=kind, resource_name=name)
        responses.append(response)
        try:
            if times_named[kind, name] > 1:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST, f"Resource {shown(name)} is given twice"
                )
            await call.session.configs.replace(
                kind,
                name,
                {config.name: config.value for config in resource.configs},
                validate_only=request.validate_only,
            )
        except RefusedError as error:
            response.error_code = error.code
            response.error_message = str(error)
    return AlterConfigsResponse(responses=responses)


API = Api(AlterConfigsRequest, versions=(0, 2), handle=handle, note="of topics and brokers")
