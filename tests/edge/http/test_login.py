"""Logging in to a cluster: a token is known to all of its brokers, until its password changes."""

import json
from http.client import HTTPConnection

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion
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
        # The token in one broker's directory is that of the whole cluster.
        other = {"authorization": f"Bearer {first.admin_token}"}
        assert second.ask("nobody", "GET", "/", headers=other)[0] == 200
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


def test_a_deleted_user_is_logged_out_everywhere_and_logins_are_on_record():
    """Of a consumer with an open connection, a stream, and a token."""
    with secured_broker() as secured:
        body = {"user": "reader", "password": PASSWORDS["reader"]}
        _, _, text = secured.ask("nobody", "POST", "/api/v1/login", body)
        bearer = {"authorization": f"Bearer {json.loads(text)['token']}"}
        failures: list[KafkaError] = []
        consumer = Consumer(
            {
                "bootstrap.servers": secured.broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "reader",
                "sasl.password": PASSWORDS["reader"],
                "group.id": GROUP,
                # Its commit, when it is closed, would be tried for a minute.
                "enable.auto.commit": False,
                "error_cb": failures.append,
            }
        )
        tail = HTTPConnection(secured.broker.http_address, timeout=wait_seconds_max())
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            record = consumer.poll(wait_seconds_max())
            assert record is not None
            tail.request("GET", f"/api/v1/topics/{TOPIC}/tail", headers=bearer)
            stream = tail.getresponse()
            assert stream.status == 200
            admin = admin_of(secured.broker)
            deletion = UserScramCredentialDeletion("reader", ScramMechanism.SCRAM_SHA_256)
            for future in admin.alter_user_scram_credentials([deletion]).values():
                future.result(wait_seconds_max())
            assert secured.ask("reader", "GET", "/")[0] == 401
            assert secured.ask("nobody", "GET", "/", headers=bearer)[0] == 401
            assert b'"status":401' in stream.read()

            def is_locked_out() -> bool:
                consumer.poll(0.1)
                return any(one.code() == KafkaError._AUTHENTICATION for one in failures)

            wait_until(is_locked_out, "the consumer's next requests are refused")
        finally:
            tail.close()
            consumer.close()
        _, _, metrics = secured.ask("admin", "GET", "/metrics")
        counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] != "#")
        for mechanism, result in (
            ("PLAIN", "success"),
            ("PLAIN", "failure"),
            ("OAUTHBEARER", "success"),
            ("OAUTHBEARER", "failure"),
        ):
            name = f'moldau_logins_total{{mechanism="{mechanism}",result="{result}"}}'
            assert float(counts[name]) >= 1, name
        audit = secured.broker.data_dir / "audit.log"
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        logins = {
            (line["principal"], line["mechanism"], line["allowed"])
            for line in lines
            if line["use_case"] == "login"
        }
        assert {
            ("User:reader", "PLAIN", True),
            ("User:reader", "PLAIN", False),
            ("User:reader", "OAUTHBEARER", True),
            ("User:moldau-admin", "OAUTHBEARER", True),
        } <= logins


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
