"""Users and join tokens as part of the metadata image. ACLs are `security.acl.Acl`.

Every broker has them, so that each of them can let clients in. No secret is stored: of passwords
what SCRAM needs to check them, of join tokens a hash.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from moldau.security.scram import ScramCredential, ScramMechanism

JOIN_TOKEN_REFUSED: Final = (
    "The join token is unknown, used or expired: create one with 'moldau cluster token create'"
)
"""The same for all, so that a client without a valid token learns nothing about others."""


class User(Struct, frozen=True, omit_defaults=True):
    name: str
    credentials: Mapping[ScramMechanism, ScramCredential]
    """At least one: a user without any does not exist."""
    created: int = 0
    """The version of the image that had it first: a later user of the same name is another one.
    0: made before this was stored."""


class JoinToken(Struct, frozen=True):
    """Permission for one broker to join. `hash` is SHA-256 of the token's secret part."""

    id: str
    hash: bytes
    expires_ms: int
    used_by: str | None = None
    """The incarnation (data directory) of the broker that joined with it."""

    def __repr__(self) -> str:
        return f"JoinToken(id={self.id!r}, expires_ms={self.expires_ms}, used_by={self.used_by!r})"
