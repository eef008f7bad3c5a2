"""What brokers send to each other to relay a request.

The broker that relays chooses the number of the exchange, opens it, pulls the reply in parts, and
closes it early if its client leaves. Only one part is asked for at a time.
"""

from typing import Final

import msgspec
from msgspec import Struct

from moldau.api.guard import ListenerAccess
from moldau.security.principal import Principal

PART_BYTES_MAX: Final = 128 * 1024
"""Of the body. The part must reach even a slow client before `IDLE_SECONDS_MAX`."""
WAIT_SECONDS: Final = 10.0
"""For news of the reply; then a part without any is returned."""
ROOM_SECONDS: Final = 10.0
"""For room in the queue of the link."""
CALL_SECONDS_MAX: Final = WAIT_SECONDS + ROOM_SECONDS + 5.0
IDLE_SECONDS_MAX: Final = 60.0
"""An exchange that nobody asks for a part is closed after this, as is a client that reads nothing
of its reply."""


class Visitor(Struct, frozen=True, kw_only=True):
    """Who sent the request, as the broker found out that it was sent to."""

    principal: Principal
    host: str
    access: ListenerAccess
    """What the listener of the client allows."""
    expires_at_ms: int | None


class Opening(Struct, frozen=True, kw_only=True):
    """A request with its whole body."""

    exchange: int
    visitor: Visitor
    method: str
    path: str
    """Decoded, as routes see it."""
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Pull(Struct, frozen=True, kw_only=True):
    """Asks for the next part; also closes an exchange, which has no reply."""

    exchange: int


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a reply."""

    status: int = 0
    """0: the reply has not begun, or began with an earlier part."""
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    is_last: bool = False
    is_cut: bool = False
    """The reply ends here, but is not complete."""


encode: Final = msgspec.msgpack.Encoder().encode
decode_opening: Final = msgspec.msgpack.Decoder(Opening).decode
decode_pull: Final = msgspec.msgpack.Decoder(Pull).decode
decode_part: Final = msgspec.msgpack.Decoder(Part).decode
