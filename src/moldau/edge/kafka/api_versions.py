"""ApiVersions (18): what the broker speaks."""

from moldau.edge.kafka.api import Api, Call
from moldau.model.errors import ErrorCode
from moldau.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)
from moldau.wire.registry import ApiKey

_advertised: list[ApiVersion] = []
_TRANSACTION_VERSION = "transaction.version"
_TRANSACTION_LEVEL = 2
"""Of the clients that ask, those that can let their epoch rise with every transaction (KIP-890)."""
_SUPPORTED = [
    SupportedFeature(name=_TRANSACTION_VERSION, min_version=0, max_version=_TRANSACTION_LEVEL)
]
_FINALIZED = [
    FinalizedFeature(
        name=_TRANSACTION_VERSION,
        max_version_level=_TRANSACTION_LEVEL,
        min_version_level=_TRANSACTION_LEVEL,
    )
]
_FEATURES_EPOCH = 0
"""What is served follows from the broker's version and never changes while it runs."""


def advertise(apis: list[Api]) -> None:
    """Called once, when all handlers are known: this handler lists them, itself included."""
    _advertised[:] = [
        ApiVersion(
            api_key=api.key,
            min_version=api.versions[0] if api.advertised_from is None else api.advertised_from,
            max_version=api.versions[1],
        )
        for api in sorted(apis, key=lambda api: api.key)
    ]


def handle(call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=_advertised,
        supported_features=_SUPPORTED,
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=_FINALIZED,
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """For a version that we do not know; encoded as version 0, with the list all the same."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised)


API = Api(key=ApiKey.API_VERSIONS, request=ApiVersionsRequest, versions=(0, 4), handle=handle)
