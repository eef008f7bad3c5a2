"""Who a client is: a principal, written as `User:alice`, as Kafka's tools do."""

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """An authenticated identity. Only users exist; the type is part of Kafka's protocol."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client of a listener without authentication."""

EVERYONE: Final = Principal(USER, "*")
"""In an ACL: every principal, the anonymous one included."""


def user(name: str) -> Principal:
    return Principal(USER, name)


def parse_principal(text: str) -> Principal:
    """Raises ValueError."""
    kind, separator, name = text.partition(":")
    if not separator or not kind or not name:
        raise ValueError(f"a principal is written as User:name, not {text!r}")
    return Principal(kind, name)
