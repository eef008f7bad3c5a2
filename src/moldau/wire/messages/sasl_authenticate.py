"""SaslAuthenticate (36): carry the messages of a SASL mechanism."""

from moldau.wire.fields import i16, i64, octets, string
from moldau.wire.schema import Request, Response


class SaslAuthenticateRequest(Request, key=36, versions=(0, 2), flexible=2):
    auth_bytes: bytes = octets()


class SaslAuthenticateResponse(Response, key=36, versions=(0, 2), flexible=2):
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    auth_bytes: bytes = octets()
    session_lifetime_ms: int = i64("1+", default=0, ignorable=True)
