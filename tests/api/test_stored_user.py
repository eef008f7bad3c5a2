"""A login that lasts ends with its user, and with no other."""

from collections.abc import Mapping

from moldau.api.stored_user import StoredUser
from moldau.metadata.security import User

ALICE, BOB = User("alice", {}), User("bob", {})


def test_a_user_exists_until_it_is_deleted() -> None:
    users: Mapping[str, User] = {"alice": ALICE, "bob": BOB}
    alice = StoredUser(lambda: users, "alice")
    assert alice.exists
    users = {"alice": ALICE}
    assert alice.exists
    assert alice.exists
    users = {"bob": BOB}
    assert not alice.exists
    assert not alice.exists


def test_users_are_looked_at_only_when_they_changed() -> None:
    class Users(dict[str, User]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            self.looks += 1
            return super().__contains__(name)

    first, second = Users(alice=ALICE), Users(alice=ALICE)
    current = first
    alice = StoredUser(lambda: current, "alice")
    assert all(alice.exists for _ in range(100))
    current = second
    assert all(alice.exists for _ in range(100))
    assert (first.looks, second.looks) == (0, 1)
