"""Who sent a request: by password, token or certificate, and who is refused."""

import asyncio
import base64

import pytest
from login_world import ADMIN_TOKEN, PASSWORDS, LoginWorld

from moldau.api.password_check import UnavailableError
from moldau.api.request_login import (
    CHECKS_PER_ADDRESS_MAX,
    NEEDED,
    NOBODY,
    Caller,
    RequestLogin,
)
from moldau.security.principal import LOCAL_ADMIN, user
from moldau.security.sasl import AuthenticationError


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def caller(*authorization: str, is_required: bool = True, **rest) -> Caller:
    login = RequestLogin(LoginWorld().authenticator, is_required=is_required)
    return await login.caller(authorization, "10.0.0.1", **rest)


@pytest.mark.parametrize("name", PASSWORDS)
async def test_a_password_or_token_proves_a_user(name):
    world = LoginWorld()
    login = RequestLogin(world.authenticator, is_required=True)
    issued = world.tokens.issue(name)
    found = await login.caller([basic(name, PASSWORDS[name])], "h")
    assert found == Caller(user(name))
    found = await login.caller([f"bearer  {issued.token}"], "h")
    assert found == Caller(user(name), issued.expires_at_ms)
    assert await caller(f"Bearer {ADMIN_TOKEN}") == Caller(LOCAL_ADMIN)


@pytest.mark.parametrize(
    "authorization",
    [
        [basic("alice", "wrong")],
        [basic("nobody", PASSWORDS["alice"])],
        [basic("moldau-admin", PASSWORDS["alice"])],
        [basic("ANONYMOUS", "x")],
        [basic("alice", "")],
        ["Bearer nonsense"],
        ["Bearer "],
        ["Bearer"],
        ["Basic"],
        ["Basic !!!"],
        ["Basic " + base64.b64encode(b"no colon").decode()],
        ["Basic " + base64.b64encode(b"\xff:\xff").decode()],
        ["Digest username=alice"],
        [""],
        [basic("alice", PASSWORDS["alice"])] * 2,
    ],
)
@pytest.mark.parametrize("is_required", [True, False])
async def test_a_wrong_proof_is_refused_everywhere(authorization, is_required):
    """Also where none is needed: who means to be alice must not become nobody unnoticed."""
    for is_public in (True, False):
        with pytest.raises(AuthenticationError):
            await caller(*authorization, is_required=is_required, is_public=is_public)


async def test_who_says_nothing_is_nobody_or_refused():
    assert await caller(is_required=False) == NOBODY
    assert await caller(is_public=True) == NOBODY
    with pytest.raises(AuthenticationError, match=NEEDED):
        await caller()


async def test_a_certificate_proves_a_user_too():
    assert await caller(certificate="CN=app") == Caller(user("CN=app"))
    found = await caller(basic("alice", PASSWORDS["alice"]), certificate="CN=app")
    assert found == Caller(user("alice"))
    with pytest.raises(AuthenticationError):
        await caller(certificate=LOCAL_ADMIN.name)


async def test_without_users_everyone_is_nobody_and_none_can_be_asked_for():
    found = await RequestLogin(None).caller(["Bearer x"], "h")
    assert found == NOBODY
    with pytest.raises(ValueError, match="authenticator"):
        RequestLogin(None, is_required=True)


async def test_an_address_has_few_proofs_checked_at_once_and_others_are_checked_meanwhile():
    """A refusal takes a quarter of a second at least, and a call waits for it."""
    world = LoginWorld()
    login = RequestLogin(world.authenticator, is_required=True)

    async def outcome(authorization: str, host: str) -> type[Exception] | Caller:
        try:
            return await login.caller([authorization], host)
        except AuthenticationError as error:
            return type(error)

    flood = [
        asyncio.create_task(outcome(f"Bearer {number}", "10.0.0.1"))
        for number in range(CHECKS_PER_ADDRESS_MAX + 10)
    ]
    await asyncio.sleep(0)
    right = basic("alice", PASSWORDS["alice"])
    assert await outcome(right, "10.0.0.2") == Caller(user("alice"))
    found = await asyncio.gather(*flood)
    assert found.count(UnavailableError) == 10
    assert found.count(AuthenticationError) == CHECKS_PER_ADDRESS_MAX
    assert await outcome(right, "10.0.0.1") == Caller(user("alice"))
    assert not login._checked
