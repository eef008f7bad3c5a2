"""Where a client begins: the addresses that were given, those of the environment, or its own."""

import pytest

from moldau import Admin, AsyncAdmin, ConsumerConfig, InvalidArgumentError, ProducerConfig
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

configs = pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig])
Config = type[ProducerConfig] | type[ConsumerConfig]


@configs
def test_what_is_given_counts_then_the_environment_then_localhost(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOLDAU_BROKERS", "a:1,b:2")
    assert config(bootstrap_servers=["c:3", "d:4"]).brokers == "c:3,d:4"
    made = config()
    assert made.brokers == "a:1,b:2"
    monkeypatch.setenv("MOLDAU_BROKERS", "")
    assert config().brokers == "localhost:9092"
    monkeypatch.delenv("MOLDAU_BROKERS")
    assert config().brokers == "localhost:9092"
    # A config is what it was when it was made, whatever becomes of the environment.
    assert made.brokers == "a:1,b:2"


@configs
@pytest.mark.parametrize("wrong", ["a:port", "", [], [5], 5, "a:0"])
def test_what_is_no_address_is_refused_when_the_config_is_made(
    config: Config, wrong: object
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        config(bootstrap_servers=wrong)  # type: ignore[arg-type]
    assert "HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "wrong", "said"),
    [
        (ProducerConfig, {"linger_ms": "5"}, "linger_ms must be a number"),
        (ProducerConfig, {"batch_size": True}, "batch_size must be a number"),
        (ProducerConfig, {"client_id": 5}, "client_id must be a string"),
        (ConsumerConfig, {"max_poll_records": "5"}, "max_poll_records must be a number"),
        (ConsumerConfig, {"max_poll_records": 0}, "max_poll_records must be at least 1"),
        (ConsumerConfig, {"group_id": 5}, "group_id must be a string"),
    ],
)
def test_a_setting_of_a_wrong_kind_is_named(
    config: Config, wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        config(**wrong)  # type: ignore[arg-type]


def test_an_admin_begins_there_too(
    moldau_session_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = moldau_session_broker.bootstrap
    monkeypatch.setenv("MOLDAU_BROKERS", at)
    for admin in (Admin(), Admin(at), Admin([at])):
        assert len(admin.nodes()[1]) == 1
        assert repr(admin) == f"<Admin at {at}>"
    assert repr(AsyncAdmin()) == f"<AsyncAdmin at {at}>"
