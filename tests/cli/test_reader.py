"""What consume and tail say of the way to the brokers."""

import pytest
from confluent_kafka import KafkaError

from moldau.cli.reader import Link

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def test_a_loss_is_told_once_whatever_was_still_to_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    link = Link("b:9092", now=lambda: now)
    link.on_error(DOWN)
    link.on_message()
    now += 0.5
    link.on_error(DOWN)
    assert capsys.readouterr().err.count("lost b:9092") == 1
    # The brokers were there again, and are gone once more.
    now += 5
    link.on_message()
    link.on_error(DOWN)
    assert capsys.readouterr().err.count("lost b:9092") == 1
