"""ApiVersions (18): the supported APIs and versions."""

from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode
from moldau.records.control import TRANSACTIONS_V2
from moldau.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)

_advertised: list[ApiVersion] = []
_TRANSACTION_VERSION = "transaction.version"
_SUPPORTED = [
    SupportedFeature(name=_TRANSACTION_VERSION, min_version=0, max_version=TRANSACTIONS_V2)
]
_FINALIZED = [
    FinalizedFeature(
        name=_TRANSACTION_VERSION,
        max_version_level=TRANSACTIONS_V2,
        min_version_level=TRANSACTIONS_V2,
    )
]
_FEATURES_EPOCH = 0
"""The features depend on the broker's version only, and never change while it runs."""


def advertise(apis: list[Api]) -> None:
    """Called once, with all handlers, this one included."""
    _advertised[:] = [
        ApiVersion(
            api_key=api.key,
            min_version=api.versions[0] if api.advertised_from is None else api.advertised_from,
            max_version=api.versions[1],
        )
        for api in sorted(apis, key=lambda api: api.key)
    ]


def handle(call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    call.connection.traffic.runs(request.client_software_name, request.client_software_version)
    return ApiVersionsResponse(
        api_keys=_advertised,
        supported_features=_SUPPORTED,
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=_FINALIZED,
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """For an unknown version of ApiVersions; encoded as version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised)


API = Api(ApiVersionsRequest, versions=(0, 4), handle=handle)
