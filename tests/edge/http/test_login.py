"""Logging in to a cluster: a token is known to all of its brokers, until its password changes."""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition
from secured_broker import (
    GROUP,
    PASSWORDS,
    SECRET,
    SETTINGS,
    TOPIC,
    SecuredBroker,
    admin_of,
    put_users,
    secured_broker,
)

from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def test_a_token_is_good_on_every_broker_until_the_password_changes():
    with Cluster(brokers=2, settings=SETTINGS) as cluster:
        first, second = (SecuredBroker(broker) for broker in cluster.brokers)
        admin = admin_of(first.broker)
        put_users(admin, PASSWORDS)
        body = {"user": "reader", "password": PASSWORDS["reader"]}
        status, _, text = first.ask("nobody", "POST", "/api/v1/login", body)
        assert status == 200
        bearer = {"authorization": f"Bearer {json.loads(text)['token']}"}

        def status_of(secured: SecuredBroker) -> int:
            return secured.ask("nobody", "GET", "/", headers=bearer)[0]

        assert status_of(first) == 200
        # The other broker may not have the user yet.
        wait_until(lambda: status_of(second) == 200, "the other broker knows the token")
        # The token of one broker's directory is not that of another.
        other = {"authorization": f"Bearer {first.admin_token}"}
        assert second.ask("nobody", "GET", "/", headers=other)[0] == 401
        put_users(admin, {"reader": "another password"})
        for secured in (first, second):
            wait_until(lambda one=secured: status_of(one) == 401, "the token has ended")


def test_a_token_is_good_for_kafka_too():
    """By OAUTHBEARER, without an identity provider."""
    with secured_broker({"KAFKA__SASL_MECHANISMS": "PLAIN,OAUTHBEARER"}) as secured:
        body = {"user": "reader", "password": PASSWORDS["reader"]}
        _, _, text = secured.ask("nobody", "POST", "/api/v1/login", body)
        login = json.loads(text)
        consumer = Consumer(
            {
                "bootstrap.servers": secured.broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (login["token"], login["expires_at_ms"] / 1000),
                "group.id": GROUP,
            }
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            record = consumer.poll(wait_seconds_max())
            assert record is not None
            assert record.value() == SECRET.encode()
        finally:
            consumer.close()


@pytest.mark.parametrize("authorization", ["Bearer x", "Basic eDp5", "Negotiate abc"])
def test_a_broker_without_users_ignores_credentials(moldau_session_broker, authorization):
    """Such as those that a browser or a proxy in front sends for something else."""
    open_broker = SecuredBroker(moldau_session_broker)
    headers = {"authorization": authorization}
    assert open_broker.ask("nobody", "GET", "/api/v1/topology", headers=headers)[0] == 200
    body = {"user": "reader", "password": "x"}
    status, _, text = open_broker.ask("nobody", "POST", "/api/v1/login", body, headers=headers)
    assert status == 400
    assert "no login is needed" in text
