"""AlterClientQuotas (49): sets and removes quotas."""

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.edge.kafka.quota_fields import entity_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotasEntry,
    AlterQuotasResponseEntity,
    AlterQuotasResponseEntry,
)


async def handle(call: Call, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            await _alter(call, entry, request.validate_only)
            async for entry in turns_of(request.entries)
        ]
    )


async def _alter(
    call: Call, entry: AlterQuotasEntry, validate_only: bool
) -> AlterQuotasResponseEntry:
    result = AlterQuotasResponseEntry(
        entity=[
            AlterQuotasResponseEntity(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in entry.entity
        ]
    )
    try:
        entity = entity_of((each.entity_type, each.entity_name) for each in entry.entity)
        limits = {each.key: None if each.remove else each.value for each in entry.ops}
        if len(limits) != len(entry.ops):
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "The request changes a quota more than once"
            )
        await call.session.decided(
            call.session.security.alter_quotas(entity, limits, validate_only=validate_only)
        )
    except RefusedError as error:
        result.error_code = error.code
        result.error_message = str(error)
    return result


API = Api(AlterClientQuotasRequest, versions=(0, 1), handle=handle)
