"""Converts whom a quota is for between the protocol's list of entities and its type."""

from collections.abc import Iterable
from typing import Final

from moldau.api.types import QuotaEntity
from moldau.model.errors import ErrorCode, RefusedError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
DEFAULT: Final = ""
"""How the metadata writes the entity of all others; the protocol has null."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Raises RefusedError."""
    found: dict[str, str] = {}
    for kind, name in parts:
        check_kind(kind)
        if kind in found:
            raise _invalid(f"A quota has one {kind}, not two")
        if name == DEFAULT:
            raise _invalid(f"The name of a {kind} must not be empty")
        found[kind] = DEFAULT if name is None else name
    if not found:
        raise _invalid("A quota is for a user, a client id, or both")
    return QuotaEntity(found.get(USER), found.get(CLIENT_ID))


def parts_of(entity: QuotaEntity) -> list[tuple[str, str | None]]:
    return [
        (kind, name or None)
        for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id))
        if name is not None
    ]


def check_kind(kind: str) -> None:
    """Raises RefusedError."""
    if kind not in (USER, CLIENT_ID):
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Quotas are for {USER} and {CLIENT_ID}; {kind!r} is not supported",
        )


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
