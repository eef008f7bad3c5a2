"""What is kept in mind of deliveries that fail, while threads look at them at any time."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from moldau.client.kafka.deliveries import Outbox

pytestmark = pytest.mark.inprocess


class Watched:
    """A lock after which another thread has its turn at once."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then: Callable[[], object] | None = then

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


def test_a_failure_is_visible_the_moment_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbox = Outbox(Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}), "brokers")
    try:
        told: list[int] = []
        lock = Watched(lambda: told.append(outbox.take_failures()[0]))
        monkeypatch.setattr(outbox, "lock", lock)
        outbox.delivery().settle(KafkaError(KafkaError._MSG_TIMED_OUT), Message(topic="t"))
        assert told == [1]
    finally:
        outbox.close()
