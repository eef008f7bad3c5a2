"""SaslHandshake (17): choose a mechanism before authentication."""

from moldau.wire.fields import array, i16, string
from moldau.wire.schema import Request, Response


class SaslHandshakeRequest(Request, key=17, versions=(0, 1)):
    mechanism: str = string()


class SaslHandshakeResponse(Response, key=17, versions=(0, 1)):
    error_code: int = i16(default=0)
    mechanisms: list[str] = array("string")
