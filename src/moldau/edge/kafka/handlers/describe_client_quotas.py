"""DescribeClientQuotas (48): the quotas whose entities match a filter."""

from enum import IntEnum

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.quota_fields import check_kind, parts_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeQuotasComponent,
    DescribeQuotasEntity,
    DescribeQuotasEntry,
    DescribeQuotasValue,
)


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


def handle(call: Call, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    try:
        wanted = _components(request)
        quotas = call.session.security.quotas()
    except RefusedError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=str(error), entries=None
        )
    entries = []
    for entity, limits in quotas.items():
        parts = dict(parts_of(entity))
        if request.strict and parts.keys() != wanted.keys():
            continue
        if all(kind in parts and _matches(parts[kind], wanted[kind]) for kind in wanted):
            entries.append(
                DescribeQuotasEntry(
                    entity=[
                        DescribeQuotasEntity(entity_type=kind, entity_name=name)
                        for kind, name in parts.items()
                    ],
                    values=[
                        DescribeQuotasValue(key=key, value=value)
                        for key, value in sorted(limits.items())
                    ],
                )
            )
    return DescribeClientQuotasResponse(entries=entries)


def _components(request: DescribeClientQuotasRequest) -> dict[str, DescribeQuotasComponent]:
    found: dict[str, DescribeQuotasComponent] = {}
    for component in request.components:
        kind = component.entity_type
        check_kind(kind)
        if kind in found:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"The filter has {kind} more than once")
        exact = component.match_type == _Match.EXACT
        if component.match_type not in list(_Match) or exact != (component.match is not None):
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"The filter of {kind} has match type {component.match_type} "
                f"{'with' if component.match is not None else 'without'} a name",
            )
        found[kind] = component
    return found


def _matches(name: str | None, component: DescribeQuotasComponent) -> bool:
    # For EXACT the name, for DEFAULT null, which is how both are written.
    return component.match_type == _Match.ANY or name == component.match


API = Api(DescribeClientQuotasRequest, versions=(0, 1), handle=handle)
