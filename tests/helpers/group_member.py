"""Owns a consumer as a process of its own, so that a test can kill it; and the test's view of it.

Run as a program it consumes with an unmodified client and prints a line for each thing that
happens: `own 0 1`, all partitions that it has now; `lost 2`, those taken from it; `got 1 17`, a
partition and an offset. It leaves its group when its standard input ends.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from moldau.testing.waiting import wait_seconds_max

CLIENTS: dict[str, dict[str, Any]] = {
    "confluent": {"group.protocol": "classic"},
    "confluent cooperative": {
        "group.protocol": "classic",
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "confluent consumer": {"group.protocol": "consumer"},
    "kafka-python": {"heartbeat_interval_ms": 500},
    "aiokafka": {"heartbeat_interval_ms": 500},
}
SESSION = {
    "confluent": "session.timeout.ms",
    "confluent cooperative": "session.timeout.ms",
    "kafka-python": "session_timeout_ms",
    "aiokafka": "session_timeout_ms",
}
"""In the newer protocol the broker says how long it is."""
STATIC = {
    "confluent": "group.instance.id",
    "confluent cooperative": "group.instance.id",
    "confluent consumer": "group.instance.id",
    "kafka-python": "group_instance_id",
    "aiokafka": "group_instance_id",
}


class Member:
    """A consumer process, and what it said so far. Ended with the context, by its id."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        instance: str | None = None,
        session_ms: int = 6000,
        command: Sequence[str] | None = None,
    ) -> None:
        """`command`: a program of another language that says the same lines."""
        options = dict(CLIENTS.get(client, {}))
        if client in SESSION:
            options[SESSION[client]] = session_ms
        if instance is not None:
            options[STATIC[client]] = instance
        here = [sys.executable, __file__, client, bootstrap, group, topic, json.dumps(options)]
        self.owned: frozenset[int] = frozenset()
        self.lost: list[int] = []
        self.got: list[tuple[int, int, float]] = []
        """Partition, offset, and when it was heard of."""
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            here if command is None else [*command, bootstrap, group, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if not line.endswith("\n"):
                # It was killed while it wrote that.
                return
            what, *numbers = line.split()
            now = time.monotonic()
            if what == "own":
                self.owned = frozenset(map(int, numbers))
            elif what == "lost":
                self.lost += map(int, numbers)
            elif what == "got":
                self.got.append((int(numbers[0]), int(numbers[1]), now))

    def kill(self) -> None:
        """As a machine that loses power: nobody is told."""
        self._process.kill()
        self._process.wait(wait_seconds_max())

    def leave(self) -> None:
        """As an application that ends."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(wait_seconds_max())
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        self._thread.join(wait_seconds_max())
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def shared(members: list[Member], partitions: int) -> bool:
    """Every partition has one of them, and their shares differ by one at most."""
    owned = [index for member in members for index in member.owned]
    shares = [len(member.owned) for member in members]
    return sorted(owned) == list(range(partitions)) and max(shares) - min(shares) <= 1


# ---- the program


def _say(what: str, numbers: Any) -> None:
    print(what, *sorted(numbers), flush=True)


def _until_told() -> threading.Event:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def _confluent(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from confluent_kafka import Consumer

    ended = _until_told()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
            **options,
        }
    )
    owned: set[int] = set()
    is_eager = options.get("partition.assignment.strategy") is None and (
        options["group.protocol"] == "classic"
    )

    def assigned(_: Any, partitions: Any) -> None:
        if is_eager:
            owned.clear()
        owned.update(one.partition for one in partitions)
        _say("own", owned)

    def revoked(_: Any, partitions: Any) -> None:
        gone = {one.partition for one in partitions}
        owned.difference_update(gone)
        _say("lost", gone)
        _say("own", owned)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            print("got", message.partition(), message.offset(), flush=True)
    consumer.close()


def _kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from kafka import KafkaConsumer

    ended = _until_told()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        **options,
    )
    owned: set[int] = set()
    # This client (3.0) loses the answer to a SyncGroup that comes when a poll has just ended, where
    # it joined again because it learned of the topic after its first join: it learns of it before.
    consumer.partitions_for_topic(topic)
    while not ended.is_set():
        for partition, records in consumer.poll(5000).items():
            for record in records:
                print("got", partition.partition, record.offset, flush=True)
        now = {partition.partition for partition in consumer.assignment()}
        if now != owned:
            _say("lost", owned - now)
            owned = now
            _say("own", owned)
    consumer.close()


def _aiokafka(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        ended = _until_told()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            **options,
        )
        await consumer.start()
        owned: set[int] = set()
        while not ended.is_set():
            for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                for record in records:
                    print("got", partition.partition, record.offset, flush=True)
            now = {partition.partition for partition in consumer.assignment()}
            if now != owned:
                _say("lost", owned - now)
                owned = now
                _say("own", owned)
        await consumer.stop()

    asyncio.run(run())


def main(client: str, bootstrap: str, group: str, topic: str, options: str) -> None:
    run = {"confluent": _confluent, "kafka-python": _kafka_python, "aiokafka": _aiokafka}
    run[client.split()[0]](bootstrap, group, topic, json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
