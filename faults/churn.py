"""A client that changes no records: topics come and go, a group commits its position.

    python -m faults.churn --bootstrap A --topic T --name n1 --history F

runs until SIGTERM, then asks the broker what there is and puts on record ("x-state") what of it
contradicts the answers it got: an acknowledged change must have lasted, one without an answer may
have happened or not.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults.clients import COMMON, History, Stop

_ANSWER_SECONDS_MAX = 5.0
_ASK_SECONDS_MAX = 60.0
_PARTITIONS = 2


class Churn:
    """What was asked for, and what was answered."""

    def __init__(self, bootstrap: str, topic: str, name: str, replication: int = 1) -> None:
        settings = {**COMMON, "bootstrap.servers": bootstrap}
        self._admin = AdminClient(settings)
        self._consumer = Consumer({**settings, "group.id": f"churn-{name}"})
        self._topic = topic
        self._name = name
        self._replication = replication
        self._present: set[str] = set()
        self._absent: set[str] = set()
        self._commit_acked = -1
        self._commit_asked = -1
        self.answered = 0
        self.unanswered = 0

    def turn(self, number: int) -> None:
        """One of each: a topic more, one less, a commit."""
        self._create(f"{self._name}-{number}")
        # Some stay, so that there is something to lose.
        if number % 3 == 0 and self._present:
            self._delete(sorted(self._present)[number % len(self._present)])
        self._commit(number)

    def _create(self, topic: str) -> None:
        try:
            wanted = NewTopic(
                topic, num_partitions=_PARTITIONS, replication_factor=self._replication
            )
            asked = self._admin.create_topics([wanted], request_timeout=_ANSWER_SECONDS_MAX)
            asked[topic].result(2 * _ANSWER_SECONDS_MAX)
        except KafkaException as error:
            # A retry after a lost answer meets its own topic.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                self.unanswered += 1
                return
        self.answered += 1
        self._present.add(topic)

    def _delete(self, topic: str) -> None:
        self._present.discard(topic)
        try:
            asked = self._admin.delete_topics([topic], request_timeout=_ANSWER_SECONDS_MAX)
            asked[topic].result(2 * _ANSWER_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                self.unanswered += 1
                return
        self.answered += 1
        self._absent.add(topic)

    def _commit(self, offset: int) -> None:
        self._commit_asked = offset
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic, 0, offset)], asynchronous=False
            )
        except KafkaException:
            self.unanswered += 1
            return
        self.answered += 1
        self._commit_acked = offset

    def contradictions(self) -> list[str]:
        """What the broker says now, against what it said before."""
        deadline = time.monotonic() + _ASK_SECONDS_MAX
        while True:
            try:
                topics = set(self._admin.list_topics(timeout=_ANSWER_SECONDS_MAX).topics)
                asked = [TopicPartition(self._topic, 0)]
                (position,) = self._consumer.committed(asked, timeout=_ANSWER_SECONDS_MAX)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        found = [f"the topic {name} is gone" for name in sorted(self._present - topics)]
        found += [f"the deleted topic {name} is back" for name in sorted(self._absent & topics)]
        if not self._commit_acked <= max(position.offset, -1) <= self._commit_asked:
            found.append(
                f"the committed offset is {position.offset}, "
                f"{self._commit_acked} was acked and {self._commit_asked} asked for"
            )
        return found

    def close(self) -> None:
        self._consumer.close()
        # It ends when nobody has it any more.
        del self._admin


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.churn", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--replication", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between turns")
    parser.add_argument("--history", type=Path, required=True)
    options = parser.parse_args(arguments)
    stop = Stop()
    churn = Churn(options.bootstrap, options.topic, options.name, options.replication)
    number = 0
    while not stop.asked:
        churn.turn(number)
        number += 1
        time.sleep(options.pause)
    with options.history.open("a") as file:
        History(file).add(
            "x-state",
            contradictions=churn.contradictions(),
            answered=churn.answered,
            unanswered=churn.unanswered,
        )
    churn.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
