"""Unmodified clients log in by every mechanism, use what they may use, and are refused the rest."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin as admin_api
import kafka
import kafka.admin
import pytest
from confluent_kafka import KafkaException
from https_keys import AUDIENCE, ISSUER, IdentityProvider, unused_https_url
from listeners_world import add_user, allow
from sasl_clients import (
    CLIENTS,
    Credentials,
    SaslClient,
    consume,
    librdkafka_settings,
    python_settings,
)
from secured_broker import admin_of, admin_token, create_topic

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

PASSWORD = "alice's planted secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
VALUES = [b"value-%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path_factory.mktemp("provider")) as started:
        yield started


def settings(provider: IdentityProvider) -> dict[str, str]:
    return {
        "KAFKA__SASL_MECHANISMS": ",".join(MECHANISMS),
        "SECURITY__OIDC_JWKS_URL": provider.url,
        "SECURITY__OIDC_CA_FILE": str(provider.ca_file),
        "SECURITY__OIDC_ISSUER": ISSUER,
        "SECURITY__OIDC_AUDIENCE": AUDIENCE,
        "TOPIC__AUTO_CREATE": "false",
    }


@pytest.fixture(scope="module")
def secured(provider: IdentityProvider) -> Iterator[Broker]:
    """A broker with the user alice, who may use topics and groups whose names begin with `a-`."""
    with Broker(settings=settings(provider)) as started:
        admin = admin_of(started)
        add_user(admin, "alice", PASSWORD)
        add_user(admin, "bob", "bob's")
        allow(admin, "User:alice", admin_api.ResourceType.TOPIC, "a-")
        allow(admin, "User:alice", admin_api.ResourceType.GROUP, "a-")
        yield started


def described_user(admin: admin_api.AdminClient, name: str) -> Any:
    found: Any = admin.describe_user_scram_credentials([name])
    return found[name].result(wait_seconds_max())


def alice(mechanism: str, provider: IdentityProvider) -> Credentials:
    if mechanism == "OAUTHBEARER":
        return Credentials(mechanism, token=lambda: provider.token("alice"))
    return Credentials(mechanism, "alice", PASSWORD)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> SaslClient:
    return CLIENTS[request.param]()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_produces_and_consumes(
    secured: Broker,
    provider: IdentityProvider,
    client: SaslClient,
    mechanism: str,
    new_name: Callable[[str], str],
):
    topic = create_topic(admin_of(secured), new_name("a-topic"))
    credentials = alice(mechanism, provider)
    client.produce(secured.bootstrap, credentials, topic, VALUES)
    received = consume(
        client, secured.bootstrap, credentials, topic, new_name("a-group"), len(VALUES)
    )
    assert received == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
@pytest.mark.parametrize("exists", [True, False])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    secured: Broker,
    client: SaslClient,
    mechanism: str,
    exists: bool,
    new_name: Callable[[str], str],
):
    # One of its own: failed logins slow down those of the same user that follow.
    name = new_name("user")
    if exists:
        add_user(admin_of(secured), name, PASSWORD)
    said = client.login_failure(secured.bootstrap, Credentials(mechanism, name, "wrong"))
    assert "wrong user or password" in said


@pytest.mark.parametrize(
    "wrong", ["none", "shared secret", "audience", "issuer", "expired", "key", "reserved"]
)
def test_tokens_that_are_not_right_are_refused(
    secured: Broker, provider: IdentityProvider, client: SaslClient, wrong: str, tmp_path: Path
):
    def token() -> str:
        match wrong:
            case "none":
                return provider.token("alice", key="", algorithm="none")
            case "shared secret":
                return confused_token(provider)
            case "audience":
                return provider.token("alice", aud="another")
            case "issuer":
                return provider.token("alice", iss="https://other.example")
            case "expired":
                return provider.token("alice", seconds=-120)
            case "key":
                return stranger.token("alice")
            case _:
                return provider.token("moldau-admin")

    with IdentityProvider(tmp_path) as stranger:
        said = client.login_failure(secured.bootstrap, Credentials("OAUTHBEARER", token=token))
    assert "token is not valid" in said


def test_a_provider_that_is_down_is_named_and_users_with_passwords_still_come_in(
    provider: IdentityProvider, client: SaslClient, new_name: Callable[[str], str]
):
    more = {"SECURITY__OIDC_JWKS_URL": unused_https_url(), "SECURITY__SUPER_USERS": "User:alice"}
    with Broker(settings={**settings(provider), **more}) as broker:
        said = client.login_failure(broker.bootstrap, alice("OAUTHBEARER", provider))
        assert "identity provider" in said
        admin = admin_of(broker)
        add_user(admin, "alice", PASSWORD)
        topic = create_topic(admin, new_name("topic"))
        client.produce(broker.bootstrap, alice("PLAIN", provider), topic, VALUES)
        lines = [line for line in broker.output.splitlines() if "keys of tokens from" in line]
    assert len(lines) == 1
    assert "refused" in lines[0]


def confused_token(provider: IdentityProvider) -> str:
    """Signed by HMAC with the public key as the secret, as if that were one."""
    import base64
    import hashlib
    import hmac
    import json

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    claims = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 300}
    header = {"alg": "HS256", "typ": "JWT", "kid": "key-1"}
    signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    signature = hmac.new(provider.public_pem(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{part(signature)}"


def test_rights_are_granted_and_refused(
    secured: Broker,
    provider: IdentityProvider,
    client: SaslClient,
    new_name: Callable[[str], str],
):
    topic = create_topic(admin_of(secured), new_name("a-topic"))
    bob = Credentials("SCRAM-SHA-256", "bob", "bob's")
    with pytest.raises(Exception, match=r"(?i)authoriz"):
        client.produce(secured.bootstrap, bob, topic, VALUES)
    other = create_topic(admin_of(secured), new_name("other"))
    with pytest.raises(Exception, match=r"(?i)authoriz"):
        client.produce(secured.bootstrap, alice("PLAIN", provider), other, VALUES)


def test_a_client_in_plain_text_gets_nothing(secured: Broker):
    producer = admin_api.AdminClient({"bootstrap.servers": secured.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)


def test_the_administrator_manages_users_acls_and_quotas(secured: Broker):
    admin = admin_of(secured)
    limit = wait_seconds_max()
    add_user(admin, "carol", "first")
    described = described_user(admin, "carol")
    assert [
        (info.mechanism.name, info.iterations) for info in described.scram_credential_infos
    ] == [("SCRAM_SHA_256", 4096), ("SCRAM_SHA_512", 4096)]
    (deleted,) = admin.alter_user_scram_credentials(
        [admin_api.UserScramCredentialDeletion("carol", admin_api.ScramMechanism.SCRAM_SHA_256)]
    ).values()
    deleted.result(limit)
    described = described_user(admin, "carol")
    assert len(described.scram_credential_infos) == 1
    with pytest.raises(KafkaException, match="does not exist"):
        described_user(admin, "nobody")

    allow(admin, "User:carol", admin_api.ResourceType.TOPIC, "c-")
    anything: Any = None
    every = admin_api.AclBindingFilter(
        admin_api.ResourceType.ANY,
        anything,
        admin_api.ResourcePatternType.ANY,
        "User:carol",
        anything,
        admin_api.AclOperation.ANY,
        admin_api.AclPermissionType.ANY,
    )
    (rule,) = admin.describe_acls(every).result(limit)
    assert (rule.name, rule.principal) == ("c-", "User:carol")
    (removed,) = [future.result(limit) for future in admin.delete_acls([every]).values()]
    assert removed == [rule]
    assert admin.describe_acls(every).result(limit) == []


def test_kafka_python_manages_users_and_acls(secured: Broker):
    login = Credentials("SCRAM-SHA-256", "moldau-admin", admin_token(secured))
    admin = kafka.KafkaAdminClient(**python_settings(secured.bootstrap, login))
    try:
        password = kafka.admin.UserScramCredentialUpsertion(
            "dave", kafka.admin.ScramMechanism.SCRAM_SHA_512, "dave's"
        )
        assert admin.alter_user_scram_credentials([password]) == {"dave": None}
        described = admin.describe_user_scram_credentials(["dave", "nobody"])
        assert len(described["dave"]["credential_infos"]) == 1
        assert "does not exist" in described["nobody"]["error"]
        rule = kafka.admin.ACL(
            principal="User:dave",
            host="*",
            operation=kafka.admin.ACLOperation.READ,
            permission_type=kafka.admin.ACLPermissionType.ALLOW,
            resource_pattern=kafka.admin.ResourcePattern(kafka.admin.ResourceType.TOPIC, "d"),
        )
        assert admin.create_acls([rule])["failed"] == []
        ours = kafka.admin.ACLFilter(
            principal="User:dave",
            host=None,
            operation=kafka.admin.ACLOperation.ANY,
            permission_type=kafka.admin.ACLPermissionType.ANY,
            resource_pattern=kafka.admin.ResourcePatternFilter(
                kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY
            ),
        )
        found, _ = admin.describe_acls(ours)
        assert found == [rule]
        ((_, deleted, _),) = admin.delete_acls([ours])
        assert deleted == [rule]
    finally:
        admin.close()
    # The password is known to one mechanism only.
    said = CLIENTS["kafka-python"]().login_failure(
        secured.bootstrap, Credentials("SCRAM-SHA-256", "dave", "dave's")
    )
    assert "wrong user or password" in said


def test_users_without_rights_manage_nothing(secured: Broker):
    bob = admin_api.AdminClient(
        librdkafka_settings(secured.bootstrap, Credentials("SCRAM-SHA-256", "bob", "bob's"))
    )
    for attempt in (
        lambda: add_user(bob, "mallory", "secret"),
        lambda: allow(bob, "User:bob", admin_api.ResourceType.TOPIC, "a-"),
        lambda: described_user(bob, "alice"),
    ):
        with pytest.raises(KafkaException, match=r"(?i)authoriz"):
            attempt()


@pytest.mark.safety
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_client_works_on_over_the_end_of_its_sessions_and_loses_nothing(
    provider: IdentityProvider, client: SaslClient, mechanism: str, new_name: Callable[[str], str]
):
    """It authenticates again on its connection (KIP-368), or, as aiokafka does, on a new one."""
    more = {
        "SECURITY__SESSION_MS_MAX": "1000",
        "SECURITY__SUPER_USERS": "User:alice",
        "LOGGING__LEVEL": "debug",
    }
    with Broker(settings={**settings(provider), **more}) as broker:
        admin = admin_of(broker)
        add_user(admin, "alice", PASSWORD)
        topic = create_topic(admin, new_name("topic"))
        credentials = alice(mechanism, provider)
        renewal = "is User:alice" if client.name == "aiokafka" else "User:alice of .* has auth"
        renewed = re.compile(renewal)
        # With aiokafka, its first connections are not renewals.
        count = 6 if client.name == "aiokafka" else 3
        sent = client.produce_until(
            broker.bootstrap,
            credentials,
            topic,
            lambda: len(renewed.findall(broker.output)) >= count,
        )
        received = consume(
            client, broker.bootstrap, credentials, topic, new_name("group"), len(sent)
        )
    assert received == sent
    assert sent


def test_no_password_and_no_token_is_in_the_log(secured: Broker, provider: IdentityProvider):
    # Failed logins are logged, with the name and without the secret.
    CLIENTS["kafka-python"]().login_failure(
        secured.bootstrap, Credentials("PLAIN", "eve", "eve's planted secret")
    )
    wait_until(lambda: "'eve'" in secured.output, "the failed login is logged")
    for secret in (PASSWORD, admin_token(secured), "planted"):
        assert secret not in secured.output
    mode = (secured.data_dir / "admin.token").stat().st_mode
    assert mode & 0o777 == 0o600
