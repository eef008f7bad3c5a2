"""A login that lasts ends with its user, and with no other."""

import base64
from collections.abc import Mapping

import pytest
from guarded_calls import HOST, GuardedWorld
from login_world import PASSWORDS, LoginWorld

from moldau.api.entrance import Entrance
from moldau.api.stored_user import StoredUser
from moldau.metadata.security import User
from moldau.net.tls.contexts import PeerCertificate
from moldau.security.principal import ANONYMOUS, user
from moldau.security.sasl import AuthenticationError

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


def entrance_of(world: LoginWorld) -> Entrance:
    return Entrance(GuardedWorld().sessions, authenticator=world.authenticator, tokens=world.tokens)


async def test_what_lasts_ends_with_the_user_however_it_logged_in() -> None:
    world = LoginWorld()
    entrance = entrance_of(world)
    headers = [BASIC, f"Bearer {world.tokens.issue('alice').token}"]
    visits = [await entrance.enter([header], HOST) for header in headers]
    for visit in visits:
        assert visit.session.principal == user("alice")
        visit.check()
    world.users = {}
    for visit, header in zip(visits, headers, strict=True):
        with pytest.raises(AuthenticationError, match="deleted"):
            visit.check()
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
