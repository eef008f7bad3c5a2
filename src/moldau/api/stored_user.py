"""Whether the user of a login that lasts, as that of a connection or a stream, is still stored."""

from collections.abc import Callable, Mapping

from moldau.metadata.security import User


class StoredUser:
    """Asked at each request, so it looks only when the users of the image are another object."""

    __slots__ = ("_created", "_name", "_seen", "_users")

    def __init__(self, users: Callable[[], Mapping[str, User]], name: str) -> None:
        """`name` is that of a user who exists."""
        self._users = users
        self._seen = users()
        self._name = name
        self._created = self._seen[name].created

    @property
    def exists(self) -> bool:
        """False from its deletion on, also if another user has its name by now: this broker may
        have seen both changes at once."""
        users = self._users()
        if users is self._seen:
            return True
        found = users.get(self._name)
        if found is None or found.created != self._created:
            return False
        self._seen = users
        return True
