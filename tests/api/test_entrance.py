"""Requests become sessions: which clients are unknown, and which are refused."""

import pytest
from guarded_calls import HOST, GuardedWorld
from login_world import ADMIN_TOKEN, LoginWorld
from open_sessions import broker_with

from moldau.api.entrance import Entrance
from moldau.api.session import OPEN_LISTENER, ListenerAccess, Sessions
from moldau.model.errors import QuotaExceededError
from moldau.net.tls.contexts import PeerCertificate
from moldau.security.principal import ANONYMOUS, LOCAL_ADMIN, user
from moldau.security.quotas import QuotaEntity, QuotaKey
from moldau.security.sasl import AuthenticationError


def certificate(expires_at: float) -> PeerCertificate:
    """Of a world in which it is one second past 1970."""
    return PeerCertificate(subject="CN=carol", expires_at=expires_at)


def entrance_of(world: LoginWorld) -> Entrance:
    return Entrance(GuardedWorld().sessions, authenticator=world.authenticator, tokens=world.tokens)


@pytest.mark.parametrize("has_users", [True, False])
async def test_a_certificate_that_has_expired_since_the_handshake_is_refused(
    has_users: bool,
) -> None:
    entrance = entrance_of(LoginWorld()) if has_users else Entrance(GuardedWorld().sessions)
    visit = await entrance.enter([], HOST, certificate=certificate(2.0))
    assert visit.expires_at_ms == 2000
    with pytest.raises(AuthenticationError, match="certificate has expired"):
        await entrance.enter([], HOST, certificate=certificate(0.5))


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


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("own_read_only", [True, False])
async def test_a_relayed_request_has_the_rights_of_its_client_at_its_listener(
    read_only: bool, own_read_only: bool
):
    door = ListenerAccess(name="door", read_only=read_only)
    own = ListenerAccess(name="own", read_only=own_read_only)
    entrance = Entrance(
        Sessions(broker_with(), super_users=frozenset()),
        access=own,
        authenticator=LoginWorld().authenticator,
        is_login_required=True,
    )
    visit = entrance.enter_relayed(user("carol"), "10.0.0.9", door, 2000)
    session = visit.session
    assert (session.principal, session.host) == (user("carol"), "10.0.0.9")
    assert (session.access.name, session.read_only) == ("door", read_only or own_read_only)
    assert visit.expires_at_ms == 2000


async def test_whom_this_broker_would_not_let_in_no_other_broker_lets_in():
    entrance = Entrance(
        Sessions(broker_with()), authenticator=LoginWorld().authenticator, is_login_required=True
    )
    with pytest.raises(AuthenticationError):
        entrance.enter_relayed(ANONYMOUS, "h", OPEN_LISTENER, None)


async def test_a_relayed_client_over_its_quota_has_to_wait():
    world = GuardedWorld()
    quotas = world.sessions.quotas
    quotas.replace({QuotaEntity("carol", None): {QuotaKey.REQUEST: 1e-6}})
    meter = quotas.meter(user("carol"), None)
    assert meter is not None
    meter.take(QuotaKey.REQUEST, 1)
    with pytest.raises(QuotaExceededError):
        Entrance(world.sessions).enter_relayed(user("carol"), "h", OPEN_LISTENER, None)
