"""A login that lasts ends with its user, and with no other."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from guarded_calls import HOST, GuardedWorld
from login_world import PASSWORDS, LoginWorld
from msgspec.structs import replace
from security_world import credential

from moldau.api.entrance import Entrance
from moldau.api.stored_user import StoredUser
from moldau.metadata.security import User
from moldau.net.tls.contexts import PeerCertificate
from moldau.security.principal import ANONYMOUS, user
from moldau.security.sasl import AuthenticationError
from moldau.security.scram import ScramMechanism

BASIC = "Basic " + base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
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


def test_another_user_of_the_same_name_is_another_user() -> None:
    """Also if the deletion between them is not seen, as when changes come at once."""
    users: Mapping[str, User] = {"alice": User("alice", {}, created=3)}
    first = StoredUser(lambda: users, "alice")
    users = {"alice": User("alice", {ScramMechanism.SHA_256: credential()}, created=3)}
    assert first.exists, "it has another password, and is the same"
    users = {"alice": User("alice", {}, created=5)}
    assert not first.exists
    assert not first.exists
    assert StoredUser(lambda: users, "alice").exists


def test_users_are_looked_at_only_when_they_changed() -> None:
    class Users(dict[str, User]):
        looks = 0

        def get(self, name: str, default: Any = None) -> Any:
            self.looks += 1
            return super().get(name, default)

    first, second = Users(alice=ALICE), Users(alice=ALICE)
    current = first
    alice = StoredUser(lambda: current, "alice")
    assert all(alice.exists for _ in range(100))
    current = second
    assert all(alice.exists for _ in range(100))
    assert (first.looks, second.looks) == (0, 1)


def entrance_of(world: LoginWorld) -> Entrance:
    return Entrance(GuardedWorld().sessions, authenticator=world.authenticator, tokens=world.tokens)


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_what_lasts_ends_with_the_user_however_it_logged_in(is_made_again: bool) -> None:
    world = LoginWorld()
    alice = world.users["alice"]
    # With the same password, which a backup of the credentials restores.
    gone = {"alice": replace(alice, created=9)} if is_made_again else {}
    entrance = entrance_of(world)
    headers = [BASIC, f"Bearer {world.tokens.issue('alice').token}"]
    visits = [await entrance.enter([header], HOST) for header in headers]
    for visit in visits:
        assert visit.session.principal == user("alice")
        visit.check()
    world.users = gone
    for visit, header in zip(visits, headers, strict=True):
        with pytest.raises(AuthenticationError, match="deleted"):
            visit.check()
        if header is not BASIC or not is_made_again:
            with pytest.raises(AuthenticationError):
                await entrance.enter([header], HOST)


async def test_a_client_that_is_not_stored_does_not_end_with_users() -> None:
    world = LoginWorld()
    entrance = entrance_of(world)
    anonymous = await entrance.enter([], HOST)
    certified = await entrance.enter(
        [], HOST, certificate=PeerCertificate(subject="CN=carol", expires_at=2.0)
    )
    assert anonymous.session.principal == ANONYMOUS
    world.users = {}
    anonymous.check()
    certified.check()
