"""POST /api/v1/login: a token for a password."""

from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.entrance import Entrance
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import LOGIN_PATH, host_of, respond_unknown
from moldau.security.sasl import AuthenticationError

_BODY_BYTES_MAX: Final = 8 * 1024


class LoginRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"LoginRequest(user={self.user!r})"


class LoginReply(Struct, frozen=True, kw_only=True):
    token: str
    expires_at_ms: int

    def __repr__(self) -> str:
        return f"LoginReply(expires_at_ms={self.expires_at_ms})"


_decode: Final = msgspec.json.Decoder(LoginRequest).decode


def routes(entrance: Entrance) -> list[Route]:
    async def login(request: Request) -> Response:
        check_query(request)
        sent = await read_body(request, _decode, bytes_max=_BODY_BYTES_MAX)
        try:
            issued = await entrance.log_in(sent.user, sent.password, host_of(request.scope))
        except AuthenticationError as error:
            return respond_unknown(error)
        return respond(LoginReply(token=issued.token, expires_at_ms=issued.expires_at_ms))

    return [Route(LOGIN_PATH, login, methods=["POST"])]
