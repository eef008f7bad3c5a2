"""Requests become sessions; what lasts of them ends with the user of the client."""

import base64

import pytest
from guarded_calls import HOST, GuardedWorld
from login_world import PASSWORDS, LoginWorld

from moldau.api.entrance import Entrance
from moldau.security.principal import ANONYMOUS, user
from moldau.security.sasl import AuthenticationError

BASIC = "Basic " + base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()


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
    certified = await entrance.enter([], HOST, certificate="CN=carol")
    assert anonymous.session.principal == ANONYMOUS
    world.users = {}
    anonymous.check()
    certified.check()
