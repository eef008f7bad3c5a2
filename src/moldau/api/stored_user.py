"""Whether the user of a login that lasts, as that of a connection or a stream, is still stored."""

from collections.abc import Callable, Mapping

from moldau.metadata.security import User


class StoredUser:
    """Asked at each request, so it looks only when the users of the image are another object."""

    __slots__ = ("_name", "_seen", "_users")

    def __init__(self, users: Callable[[], Mapping[str, User]], name: str) -> None:
        self._users = users
        self._seen = users()
        self._name = name

    @property
    def exists(self) -> bool:
        """False from its deletion on."""
        users = self._users()
        if users is self._seen:
            return True
        if self._name not in users:
            return False
        self._seen = users
        return True
