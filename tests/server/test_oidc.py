"""Tokens of an identity provider: good ones by new keys too, and no others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from https_keys import AUDIENCE, ISSUER, IdentityProvider

from moldau.security.principal import user
from moldau.security.sasl import AuthenticationError
from moldau.server.clock import SystemClock
from moldau.server.config.security_schema import SecurityConfig
from moldau.server.oidc import OidcTokens, oidc_tokens

pytestmark = pytest.mark.inprocess


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path) as started:
        yield started


def tokens(provider: IdentityProvider, claim: str = "sub") -> OidcTokens:
    return oidc_tokens(
        SecurityConfig(
            oidc_jwks_url=provider.url,
            oidc_ca_file=str(provider.ca_file),
            oidc_issuer=ISSUER,
            oidc_audience=AUDIENCE,
            oidc_principal_claim=claim,
        ),
        SystemClock(),
    )


async def test_a_good_token_names_its_user_and_when_it_expires(provider: IdentityProvider):
    checked = tokens(provider)
    principal, expires_at_ms = await checked.check(provider.token("alice", seconds=300))
    assert principal == user("alice")
    now = SystemClock().wall_ms()
    # Clocks may differ, by the setting: half a minute.
    assert now < expires_at_ms <= now + 330_000
    several = provider.token("alice", aud=["another", AUDIENCE])
    assert (await checked.check(several))[0] == user("alice")
    await checked.stop()


async def test_the_claim_of_the_user_is_a_setting(provider: IdentityProvider):
    checked = tokens(provider, "preferred_username")
    token = provider.token("1234", preferred_username="alice")
    assert (await checked.check(token))[0] == user("alice")
    with pytest.raises(AuthenticationError):
        await checked.check(provider.token("1234"))
    await checked.stop()


async def test_a_key_that_was_fetched_with_the_others_is_used(provider: IdentityProvider):
    provider.add_key("key-2", curve=True)
    checked = tokens(provider)
    assert (await checked.check(provider.token("alice", key_id="key-2")))[0] == user("alice")
    assert provider.requests == 1
    await checked.stop()


async def test_tokens_of_made_up_keys_do_not_make_the_broker_ask_again(
    provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
):
    checked = tokens(provider)
    await checked.check(provider.token("alice"))
    with IdentityProvider(tmp_path_factory.mktemp("other")) as other:
        for number in range(20):
            other.add_key(f"made-up-{number}", curve=True)
            with pytest.raises(AuthenticationError):
                await checked.check(other.token("alice", key_id=f"made-up-{number}"))
        with pytest.raises(AuthenticationError):
            await checked.check(other.token("alice", key_id="key-1"))
    assert provider.requests == 1
    await checked.stop()
