"""Unmodified clients over TLS, by every way to say who they are: what they may do, and may not."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from listeners_world import (
    MTLS,
    PASSWORD,
    SASL,
    WAYS,
    ListenersWorld,
    add_user,
    allow,
    listeners_world,
)
from sasl_clients import CLIENTS, ClientTls, Credentials, SaslClient, consume, refusal_of
from secure_front import identity

from moldau.edge.kafka.compatibility import JAVA, LOGINS, TESTED_CLIENTS

pytestmark = [pytest.mark.compat, pytest.mark.system]

VALUES = [b"value-%d" % number for number in range(20)]
OWN_NAMES = {
    "confluent-kafka": ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
    "kafka-python": ("TopicAuthorizationFailedError", "GroupAuthorizationFailedError"),
    "aiokafka": ("TopicAuthorizationFailedError", "GroupAuthorizationFailedError"),
}
"""Each client's own errors for a topic and for a group."""


def test_the_documented_clients_are_those_that_are_tested() -> None:
    assert {*CLIENTS, JAVA} == set(TESTED_CLIENTS)
    assert WAYS == LOGINS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenersWorld]:
    with listeners_world(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture(scope="module")
def closed(world: ListenersWorld) -> dict[str, str]:
    """Topics that alice may not read: the client learns it from Metadata, or from Fetch."""
    admin = world.admin()
    allow(admin, "User:alice", ResourceType.TOPIC, "visible", AclOperation.DESCRIBE)
    return {name: world.create_topic(name) for name in ("hidden", "visible")}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> SaslClient:
    return CLIENTS[request.param]()


@pytest.mark.parametrize("way", WAYS)
def test_with_rights_a_client_produces_and_consumes(
    world: ListenersWorld, client: SaslClient, way: str, new_name: Callable[[str], str]
) -> None:
    bootstrap, alice = world.bootstrap(way), world.credentials(way)
    topic = world.create_topic(new_name("a-topic"))
    client.produce(bootstrap, alice, topic, VALUES)
    assert consume(client, bootstrap, alice, topic, new_name("a-group"), len(VALUES)) == VALUES


@pytest.mark.parametrize("way", WAYS)
def test_without_rights_a_client_gets_its_own_error(
    world: ListenersWorld,
    client: SaslClient,
    way: str,
    closed: dict[str, str],
    new_name: Callable[[str], str],
) -> None:
    bootstrap, alice = world.bootstrap(way), world.credentials(way)
    of_topic, of_group = OWN_NAMES[client.name]
    for topic in closed.values():
        with pytest.raises(Exception) as caught:
            client.produce(bootstrap, alice, topic, VALUES)
        assert refusal_of(caught.value) == of_topic
    # A hidden topic is a line in the log of kafka-python's consumer, and no error.
    with pytest.raises(Exception) as caught:
        consume(client, bootstrap, alice, closed["visible"], new_name("a-group"), 1)
    assert refusal_of(caught.value) == of_topic
    topic = world.create_topic(new_name("a-topic"))
    with pytest.raises(Exception) as caught:
        consume(client, bootstrap, alice, topic, new_name("closed-group"), 1)
    assert refusal_of(caught.value) == of_group


@pytest.mark.parametrize("way", ["OAUTHBEARER", MTLS])
def test_a_token_or_certificate_of_another_name_has_not_the_same_rights(
    world: ListenersWorld, client: SaslClient, way: str, new_name: Callable[[str], str]
) -> None:
    topic = world.create_topic(new_name("a-topic"))
    with pytest.raises(Exception) as caught:
        client.produce(world.bootstrap(way), world.credentials(way, "bob"), topic, VALUES)
    assert refusal_of(caught.value) == OWN_NAMES[client.name][0]


@pytest.mark.parametrize("mechanism", SASL[:3])
def test_a_wrong_password_is_refused(
    world: ListenersWorld, client: SaslClient, mechanism: str, new_name: Callable[[str], str]
) -> None:
    # A user of its own: failed logins slow down those of the same user that follow.
    name = new_name("user")
    add_user(world.admin(), name, PASSWORD)
    wrong = world.credentials(mechanism, name, "wrong")
    said = client.login_failure(world.bootstrap(mechanism), wrong)
    assert "wrong user or password" in said


def test_a_token_of_another_audience_is_refused(world: ListenersWorld, client: SaslClient) -> None:
    trusted = ClientTls(str(world.tls.ca_file))
    other = Credentials(
        "OAUTHBEARER", token=lambda: world.provider.token("alice", aud="another"), tls=trusted
    )
    said = client.login_failure(world.bootstrap("OAUTHBEARER"), other)
    assert "token is not valid" in said


@pytest.mark.parametrize("way", ["SCRAM-SHA-256", MTLS])
def test_a_client_refuses_a_broker_of_an_unknown_authority(
    world: ListenersWorld, client: SaslClient, way: str, tmp_path: Path
) -> None:
    another = tmp_path / "another.pem"
    another.write_text(identity("another").pem)
    said = client.login_failure(world.bootstrap(way), world.credentials(way, ca_file=another))
    assert re.search("(?i)certificate.verify.failed", said)


@pytest.mark.parametrize(
    ("given", "alert"),
    [
        ("none", "alert.certificate.required"),
        ("of another authority", "alert.unknown.ca"),
        ("expired", "alert.certificate.expired"),
    ],
)
def test_without_a_certificate_that_the_broker_accepts_there_is_no_connection(
    world: ListenersWorld, client: SaslClient, given: str, alert: str
) -> None:
    pair = None
    if given == "of another authority":
        pair = world.tls.client_files("mallory", signer=identity("another"))
    elif given == "expired":
        pair = world.tls.client_files("late", expires_in=timedelta(hours=-1))
    stranger = Credentials("", tls=ClientTls(str(world.tls.ca_file), pair))
    said = client.login_failure(world.bootstrap(MTLS), stranger)
    # aiokafka passes no alert of TLS on.
    assert re.search(f"(?i){alert}|connection at .* closed", said)
