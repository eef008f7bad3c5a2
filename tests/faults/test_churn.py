"""The client that changes topics and commits finds every contradiction to the answers it got."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults.churn import Churn
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


class Setting:
    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.create(f"load-{name}")
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"churn-{name}"})
        self.churn = Churn(bootstrap, f"load-{name}", name)
        for number in range(7):
            self.churn.turn(number)

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(wait_seconds_max())

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(wait_seconds_max())

    def commit(self, offset: int) -> None:
        self.consumer.commit(
            offsets=[TopicPartition(f"load-{self.name}", 0, offset)], asynchronous=False
        )


@pytest.fixture
def setting(
    moldau_session_broker: Broker, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setting]:
    # No broker is taken away here: whatever is asked is answered.
    monkeypatch.setattr("faults.churn._ANSWER_SECONDS_MAX", wait_seconds_max())
    made = Setting(moldau_session_broker.bootstrap, new_name("churn"))
    yield made
    made.churn.close()
    made.consumer.close()
    del made.admin


def test_a_broker_that_keeps_its_word_is_not_contradicted(setting: Setting) -> None:
    assert setting.churn.contradictions() == []
    assert setting.churn.unanswered == 0
    # Seven creates, seven commits, and a deletion with every third.
    assert setting.churn.answered == 17


def test_a_topic_that_vanished_is_found(setting: Setting) -> None:
    topic = sorted(setting.churn._present)[0]
    setting.delete(topic)
    assert setting.churn.contradictions() == [f"the topic {topic} is gone"]


def test_a_deleted_topic_that_is_back_is_found(setting: Setting) -> None:
    topic = sorted(setting.churn._absent)[0]
    setting.create(topic)
    assert setting.churn.contradictions() == [f"the deleted topic {topic} is back"]


@pytest.mark.safety
@pytest.mark.parametrize("offset", [5, 7])
def test_a_commit_that_went_back_or_was_never_requested_is_found(
    setting: Setting, offset: int
) -> None:
    setting.commit(offset)
    (found,) = setting.churn.contradictions()
    assert found == f"the committed offset is {offset}, 6 was acked and 6 asked for"
