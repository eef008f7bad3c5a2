"""A producer with acks=all that never pauses, and the history of it for faults/checker."""

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from moldau.testing.waiting import wait_seconds_max, wait_until

_PAUSE_SECONDS = 0.005


class SteadyLoad:
    """Produces in a thread until it is left; every delivery is noted."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: of the clients, to log in."""
        self._connection = {"bootstrap.servers": bootstrap, **(settings or {})}
        self._topic, self._partitions = topic, partitions
        self.events: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.acked = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for_more(self, count: int = 50) -> None:
        """So many more are acknowledged, from now on."""
        goal = self.acked + count
        wait_until(lambda: self.acked >= goal, f"{count} more are acknowledged")

    def _run(self) -> None:
        producer = Producer(
            {
                **self._connection,
                "acks": "all",
                "enable.idempotence": True,
                # As many messages in fewer requests, which are most of what this costs.
                "linger.ms": 50,
                "delivery.timeout.ms": int(wait_seconds_max() * 1000),
                "reconnect.backoff.max.ms": 500,
            }
        )
        number = 0
        while not self._ended.wait(_PAUSE_SECONDS):
            producer.produce(
                self._topic,
                f"p1:{number}",
                partition=number % self._partitions,
                on_delivery=self._noted(number),
            )
            place = f"{self._topic}/{number % self._partitions}"
            self.events.append({"op": "send", "p": "p1", "n": number, "tp": place, "at": number})
            number += 1
            producer.poll(0)
        producer.flush(wait_seconds_max())

    def _noted(self, number: int) -> Any:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            event: dict[str, Any] = {"op": "ack", "p": "p1", "n": number, "at": number}
            if error is None:
                self.acked += 1
                event["o"] = message.offset()
            else:
                self.failures.append(f"{number}: {error}")
                event["op"] = "unknown"
            self.events.append(event)

        return on_delivery

    def read_all(self) -> None:
        """Add to the history what is stored now."""
        consumer = Consumer(
            {
                **self._connection,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            for partition in range(self._partitions):
                place = TopicPartition(self._topic, partition, 0)
                # Its leadership may be on its way back to the broker that is to have it.
                start, end = wait_until(
                    partial(consumer.get_watermark_offsets, place, timeout=wait_seconds_max()),
                    "the ends of the partition are known",
                    ignoring=KafkaException,
                )
                consumer.assign([place])
                records: list[tuple[int, str]] = []
                while len(records) < end - start:
                    for message in consumer.consume(1000, timeout=1.0):
                        assert message.error() is None, message.error()
                        offset, value = message.offset(), message.value()
                        assert offset is not None
                        assert value is not None
                        records.append((offset, bytes(value).decode()))
                name = f"{self._topic}/{partition}"
                self.events += [
                    {"op": "poll", "c": "c1", "tp": name, "r": records},
                    {"op": "end", "tp": name, "start": start, "end": end, "c": "c1"},
                ]
        finally:
            consumer.close()
