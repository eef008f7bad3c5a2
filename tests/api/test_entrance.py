"""Which clients are unknown, and where that matters."""

import pytest
from login_world import ADMIN_TOKEN, LoginWorld
from open_sessions import broker_with

from moldau.api.entrance import Entrance
from moldau.api.session import Sessions
from moldau.security.principal import ANONYMOUS, LOCAL_ADMIN


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
