"""What credentials of users that do not exist look like: like those of users, in their shares."""

import hmac
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Final

from moldau.metadata.security import User
from moldau.security.scram import ScramCredential, ScramMechanism

_LABEL: Final = b"model "
_DRAWN_BYTES: Final = 8


class DecoyModels:
    """Tools that make users choose other iterations and salts. If all unknown names looked like
    the users of one tool, a name that looks like those of another would be known to exist.

    A name keeps its model while users stay; few names get another one when a user comes or goes.
    """

    def __init__(self, users: Callable[[], Mapping[str, User]], key: bytes) -> None:
        """`key` is secret: nobody can compute the model of a name to compare."""
        self._users = users
        self._key = key
        self._seen: Mapping[str, User] | None = None
        self._models: dict[ScramMechanism, tuple[list[int], list[ScramCredential]]] = {}

    def of(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """None if no user has this mechanism."""
        users = self._users()
        if users is not self._seen:
            self._seen = users
            self._models = {each: _models(users, each) for each in ScramMechanism}
        ends, models = self._models[mechanism]
        if not models:
            return None
        digest = hmac.digest(self._key, _LABEL + name.encode(), "sha256")
        drawn = int.from_bytes(digest[:_DRAWN_BYTES], "big") * ends[-1] >> 8 * _DRAWN_BYTES
        return models[bisect_right(ends, drawn)]


def _models(
    users: Mapping[str, User], mechanism: ScramMechanism
) -> tuple[list[int], list[ScramCredential]]:
    """A credential of each shape, and how many users have it or one before it."""
    counts: Counter[tuple[int, int]] = Counter()
    models: dict[tuple[int, int], ScramCredential] = {}
    for user in users.values():
        credential = user.credentials.get(mechanism)
        if credential is not None:
            shape = (credential.iterations, len(credential.salt))
            counts[shape] += 1
            models[shape] = credential
    shapes = sorted(counts)
    return list(accumulate(counts[each] for each in shapes)), [models[each] for each in shapes]
