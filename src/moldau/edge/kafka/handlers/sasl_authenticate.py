"""SaslAuthenticate (36): a message of the chosen mechanism, and the lifetime of the session."""

from collections.abc import Coroutine
from typing import Any

from moldau.edge.kafka.client_login import ClientLogin, login_of
from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode
from moldau.security.sasl import AuthenticationError
from moldau.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


def handle(
    call: Call, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Coroutine[Any, Any, SaslAuthenticateResponse]:
    login = login_of(call.connection)
    if login is None or not login.has_exchange:
        if login is not None:
            login.end()
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake must come first",
            auth_bytes=b"",
        )
    # From now on, not from when the task begins: the next frame may be handled before that.
    login.is_stepping = True
    return _step(login, bytes(request.auth_bytes))


async def _step(login: ClientLogin, message: bytes) -> SaslAuthenticateResponse:
    try:
        answer, lifetime_ms = await login.step(message)
    except AuthenticationError as error:
        login.end()
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=str(error),
            auth_bytes=b"",
        )
    return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)


API = Api(SaslAuthenticateRequest, versions=(0, 2), handle=handle)
