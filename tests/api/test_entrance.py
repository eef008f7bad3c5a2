"""Requests become sessions: which clients are unknown, and when what lasts of them ends."""

import base64

import pytest
from guarded_calls import HOST, GuardedWorld
from login_world import ADMIN_TOKEN, PASSWORDS, LoginWorld
from open_sessions import broker_with

from moldau.api.entrance import Entrance
from moldau.api.session import Sessions
from moldau.security.principal import ANONYMOUS, LOCAL_ADMIN, user
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


@pytest.mark.parametrize("authorizes", [True, False])
@pytest.mark.parametrize("is_login_required", [True, False])
async def test_who_does_not_say_who_it_is_is_unknown_where_rights_differ(
    authorizes: bool, is_login_required: bool
):
    super_users = frozenset({LOCAL_ADMIN}) if authorizes else None
    entrance = Entrance(
        Sessions(broker_with(), super_users=super_users),
        authenticator=LoginWorld().authenticator,
        is_login_required=is_login_required,
    )
    nobody = await entrance.enter([], "h", is_public=True)
    assert nobody.session.principal == ANONYMOUS
    assert nobody.is_unknown == (authorizes or is_login_required)
    admin = await entrance.enter([f"Bearer {ADMIN_TOKEN}"], "h")
    assert admin.session.principal == LOCAL_ADMIN
    assert not admin.is_unknown


@pytest.mark.parametrize("authorization", ["Bearer x", "Basic eDp5", "nonsense"])
async def test_where_nobody_has_a_name_credentials_mean_nothing(authorization: str):
    visit = await Entrance(Sessions(broker_with())).enter([authorization], "h")
    assert visit.session.principal == ANONYMOUS
    assert not visit.is_unknown
