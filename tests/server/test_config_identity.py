"""Settings of users, certificates and identity providers that cannot work are refused."""

import pytest

from moldau.security.principal import LOCAL_ADMIN, user
from moldau.server.build_authentication import super_users
from moldau.server.config.load import InvalidConfigError, load_config

PROVIDER = {
    "security.oidc_jwks_url": "https://issuer.example/keys",
    "security.oidc_issuer": "https://issuer.example",
    "security.oidc_audience": "moldau",
}


def problems(**settings: str) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        load(settings)
    return str(caught.value)


def load(settings: dict[str, str]):
    named = {f"MOLDAU_{key.replace('.', '__').upper()}": each for key, each in settings.items()}
    return load_config({}, named).config


@pytest.mark.parametrize(
    "url",
    ["http://issuer.example/keys", "file:///etc/passwd", "https://", "issuer.example/keys"],
)
def test_keys_come_from_an_https_address_only(url: str):
    assert "security.oidc_jwks_url" in problems(**PROVIDER | {"security.oidc_jwks_url": url})


@pytest.mark.parametrize("missing", PROVIDER)
def test_a_provider_needs_keys_issuer_and_audience(missing: str):
    given = {key: value for key, value in PROVIDER.items() if key != missing}
    assert missing in problems(**given)


def test_tokens_as_a_mechanism_need_no_provider():
    """The broker issues tokens of its own: POST /api/v1/login."""
    assert load({"kafka.sasl_mechanisms": "PLAIN,OAUTHBEARER"})
    assert load({"kafka.sasl_mechanisms": "PLAIN,OAUTHBEARER"} | PROVIDER)


@pytest.mark.parametrize("algorithms", ["none", "HS256", "RS256,HS256", ",", "rs256"])
def test_only_signatures_with_public_keys_can_be_configured(algorithms: str):
    assert "security.oidc_algorithms" in problems(
        **PROVIDER | {"security.oidc_algorithms": algorithms}
    )


def test_super_users_and_rules_of_certificates_are_checked():
    assert "security.super_users" in problems(**{"security.super_users": "alice"})
    rules = problems(**{"security.principal_mapping": "RULE:(/$1/"})
    assert "security.principal_mapping" in rules


@pytest.mark.parametrize("given", ["User:alice,User:bob", "User:a;User:alice, user:bob"])
def test_super_users_with_a_comma_between_them_are_not_one_user(given: str):
    assert "has a comma between two users" in problems(**{"security.super_users": given})


def test_the_subject_of_a_certificate_can_be_a_super_user():
    given = {"security.super_users": "User:CN=ann,O=Example;User:bob"}
    assert user("CN=ann,O=Example") in (
        super_users(load(given | {"http.authentication": "users"})) or ()
    )


def test_authorisation_is_on_as_soon_as_a_listener_authenticates():
    assert super_users(load({})) is None
    secured = {"kafka.sasl_mechanisms": "PLAIN", "security.super_users": "User:root; User:ops"}
    assert super_users(load(secured)) == frozenset({LOCAL_ADMIN, user("root"), user("ops")})
    assert super_users(load(secured | {"security.authorization": "none"})) is None
    assert super_users(load({"security.authorization": "acls"})) == frozenset({LOCAL_ADMIN})
    assert super_users(load({"http.authentication": "users"})) == frozenset({LOCAL_ADMIN})
