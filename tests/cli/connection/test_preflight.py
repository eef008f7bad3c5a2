"""A broker on this machine that names another one does not get our password sent there."""

from collections.abc import Iterator

import pytest

from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

ELSEWHERE = "192.0.2.7"
"""Reserved for documentation: nobody is there."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"KAFKA__SASL_MECHANISMS": "PLAIN", "KAFKA__ADVERTISED": f"{ELSEWHERE}:9092"}
    with Broker(settings=settings) as started:
        yield started


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("produce", "t", "-m", "one"), ("partition", "list-moves")]
)
def test_a_password_stays_on_this_machine(cli, broker, command):
    refused = cli(*command, "-b", broker.bootstrap, "--data-dir", broker.data_dir)
    assert refused.code != 0
    assert f"will not send a password or token to {ELSEWHERE} without TLS" in refused.err
