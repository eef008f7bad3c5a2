"""SaslHandshake (17): the client names the mechanism that it will authenticate with."""

from moldau.edge.kafka.client_login import login_of
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_RAW_VERSION = 0
"""The messages of the mechanism follow without Kafka's header; older clients do that."""


def handle(call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    login = login_of(call.connection)
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    mechanisms = list(login.mechanisms)
    if login.has_exchange:
        login.end()
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=mechanisms)
    is_again = login.principal is not None
    if request.mechanism not in mechanisms or (is_again and request.mechanism != login.mechanism):
        # Also one that differs from the first, when a client authenticates again (KIP-368).
        login.end()
        return SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms
        )
    login.begin(request.mechanism, is_raw=call.version == _RAW_VERSION)
    return SaslHandshakeResponse(mechanisms=mechanisms)


API = Api(SaslHandshakeRequest, versions=(0, 1), handle=handle)
