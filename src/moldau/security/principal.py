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

LOCAL_ADMIN: Final = Principal(USER, "moldau-admin")
"""Who has read the token in the data directory of a broker; a super user."""

NAME_BYTES_MAX: Final = 255
_RESERVED_NAMES: Final = frozenset({ANONYMOUS.name, EVERYONE.name, LOCAL_ADMIN.name})


def user(name: str) -> Principal:
    return Principal(USER, name)


def parse_principal(text: str) -> Principal:
    """Raises ValueError."""
    kind, separator, name = text.partition(":")
    if not separator or not kind or not name:
        raise ValueError(f"a principal is written as User:name, not {text!r}")
    return Principal(kind, name)


def authenticated_user(name: str) -> Principal:
    """The principal of a name that comes from outside: a stored user, a certificate, a token.

    Reserved names have a meaning of their own, which no name from outside may get. Raises
    ValueError.
    """
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise ValueError(f"a user name has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode())}")
    if name in _RESERVED_NAMES:
        raise ValueError(f"the user name {name!r} is reserved")
    if name != name.strip() or not name.isprintable():
        raise ValueError("a user name has no control characters, and no space at its ends")
    return user(name)
