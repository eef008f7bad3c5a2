"""A producer's settings are checked when they are written down."""

from typing import Any

import pytest

from moldau import AckMode, InvalidArgumentError, ProducerConfig
from moldau.client.kafka.producer_config import ack_mode


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *[(mode, mode) for mode in AckMode],
        *[(0, AckMode.NONE), ("0", AckMode.NONE), ("none", AckMode.NONE)],
        *[(1, AckMode.LEADER), ("1", AckMode.LEADER), ("leader", AckMode.LEADER)],
        *[(-1, AckMode.ALL), ("-1", AckMode.ALL), ("all", AckMode.ALL)],
    ],
)
def test_a_level_may_be_written_in_many_ways(written: Any, meant: AckMode) -> None:
    assert ack_mode(written) is meant


@pytest.mark.parametrize("wrong", [2, "some", True, ""])
def test_what_is_no_level_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="acks must be 0, 1 or"):
        ProducerConfig(acks=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": 1, "enable_idempotence": True},
        {"acks": 1, "transactional_id": "t"},
        {"enable_idempotence": False, "transactional_id": "t"},
        {"compression_type": "zip"},
        {"batch_size": 0},
        {"max_block_ms": -1},
        {"linger_ms": 500, "delivery_timeout_ms": 500},
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ProducerConfig(**wrong)  # type: ignore[arg-type]
    assert caught.value.hint


def test_only_the_level_all_is_idempotent() -> None:
    config = ProducerConfig()
    promised = {mode: config.settings(mode)["enable.idempotence"] for mode in AckMode}
    assert promised == {AckMode.NONE: False, AckMode.LEADER: False, AckMode.ALL: True}
    without = ProducerConfig(enable_idempotence=False)
    assert without.settings(AckMode.ALL)["enable.idempotence"] is False


def test_own_properties_win() -> None:
    settings = ProducerConfig(linger_ms=7, extra={"linger.ms": "9"}).settings(AckMode.ALL)
    assert settings["linger.ms"] == "9"


def test_brokers_come_as_text_or_list_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ProducerConfig(bootstrap_servers=["a:1", "b:2"]).brokers == "a:1,b:2"
    assert ProducerConfig(bootstrap_servers="a:1").brokers == "a:1"
    monkeypatch.setenv("MOLDAU_BROKERS", "c:3")
    assert ProducerConfig().brokers == "c:3"
    monkeypatch.delenv("MOLDAU_BROKERS")
    assert ProducerConfig().brokers == "localhost:9092"
    with pytest.raises(InvalidArgumentError, match="invalid broker address"):
        _ = ProducerConfig(bootstrap_servers="a:b").brokers
