"""What consume and tail say of the way to the brokers."""

import pytest
from confluent_kafka import KafkaError

from moldau.cli.messages.reader import BrokerLink, StallTimeout
from moldau.client.errors import ClientError

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def test_a_loss_is_reported_once_whatever_was_still_to_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    link = BrokerLink("b:9092", now=lambda: now)
    link.on_error(DOWN)
    link.on_message()
    now += 0.5
    link.on_error(DOWN)
    assert capsys.readouterr().err.count("lost the connection to b:9092") == 1
    # The brokers were there again, and are gone once more.
    now += 5
    link.on_message()
    link.on_error(DOWN)
    assert capsys.readouterr().err.count("lost the connection to b:9092") == 1


def test_missing_responses_are_reported_once_and_end_the_command_in_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    patience = StallTimeout(now=lambda: now)
    missing = [("t", 1), ("t", 0)]
    for _ in range(10):
        patience.check(missing)
        now += 4
    assert capsys.readouterr().err.count("waiting for messages from t-0, t-1 (Ctrl-C stops)") == 1
    # One more is read to its end: that is progress.
    for _ in range(10):
        patience.check(missing[:1])
        now += 4
    assert capsys.readouterr().err.count("waiting for messages from t-1 (Ctrl-C stops)") == 1
    now += 30
    with pytest.raises(ClientError, match="not read to the end: no message from t-1 for 70 s"):
        patience.check(missing[:1])
