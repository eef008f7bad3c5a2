"""The clients under test: unmodified librdkafka, with everything it did and saw on record.

Each runs as a process of its own, so that it can live in another network namespace than the
harness, and writes the JSON lines that faults/checker.py reads:

    python -m faults.clients create  --bootstrap A --topic T --partitions 4 [--set KEY=VALUE …]
    python -m faults.clients produce --bootstrap A --topic T --partitions 4 --name p1 --history F
    python -m faults.clients consume --bootstrap A --topic T --partitions 4 --name c1 --history F
    python -m faults.clients member  --bootstrap A --topic T --partitions 4 --name m1 --history F
    python -m faults.clients bounds  --bootstrap A --topic T --partitions 4 --name b1 --history F
    python -m faults.clients read    --bootstrap A --topic T --partitions 4 --name r1 --history F

`produce`, `consume` and `member` (of a group that commits) run until SIGTERM; `read` reads
everything once and says where it ended, `committed` what the group has committed.
"""

import argparse
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults import login

OUTSTANDING_MAX = 2_000
"""Sends without an outcome: the load stays bounded while the broker is away."""
FLUSH_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 90.0
CLOSE_SECONDS_MAX = 30.0
_GROUP = "faults-group"
_DEBUG_VARIABLE = "FAULTS_CLIENT_DEBUG"
NAME_HEADER = "name"
"""Of a record without a value, which removes its key."""
_REMOVAL_CHANCE = 0.08
EXIT_UNREAD = 3
"""`read` could not reach the end; what it saw is on record."""
_NEVER_WRITTEN = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._QUEUE_FULL})
COMMON: dict[str, Any] = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 3_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 250,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "log_level": 0,
    **login.properties(),
}


class History:
    """A file of events, each with its time on the clock that all processes of a machine share."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def add(self, operation: str, **fields: Any) -> None:
        event = {"op": operation, "at": time.monotonic_ns(), **fields}
        self._file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        self._file.flush()


class Stop:
    """Becomes true with SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True


def payload(value: str, size: int) -> bytes:
    """A record that can be distinguished from a corrupt one: its name, repeated."""
    unit = value.encode() + b"|"
    return unit * max(1, size // len(unit))


def value_of(data: bytes | None) -> str:
    """The name in a payload; one that nobody sent if it is damaged."""
    unit, _, _ = (data or b"").partition(b"|")
    if not data or data.replace(unit + b"|", b""):
        return f"damaged {bytes(data or b'')[:40].hex()}"
    return unit.decode(errors="replace")


def _name_of(message: Message) -> str:
    """The name in a record; one that removes its key has it in a header."""
    if message.value() is None:
        headers: dict[str, Any] = dict(message.headers() or ())
        return bytes(headers.get(NAME_HEADER, b"")).decode(errors="replace")
    return value_of(message.value())


def create(options: argparse.Namespace) -> int:
    """Make the topic, waiting for the broker if it is not there yet."""
    admin = AdminClient({**COMMON, "bootstrap.servers": options.bootstrap})
    settings = dict(pair.split("=", 1) for pair in options.set)
    topic = NewTopic(
        options.topic,
        num_partitions=options.partitions,
        replication_factor=options.replication,
        config=settings,
    )
    admin.create_topics([topic], request_timeout=20.0)[options.topic].result(30.0)
    return 0


def produce(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Send at a steady rate to all partitions in turn, idempotent and with acks=all."""
    producer = Producer(
        {
            **COMMON,
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": not options.plain,
            "acks": options.acks,
            "linger.ms": 2,
            "batch.num.messages": 50,
            "message.timeout.ms": 300_000,
            "request.timeout.ms": 8_000,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 250,
            **debug_settings(options),
        }
    )
    outstanding: set[int] = set()
    name, period = options.name, 1 / options.rate

    def reported(number: int, error: KafkaError | None, message: Message) -> None:
        outstanding.discard(number)
        if error is None:
            key = f"{options.topic}/{number % options.partitions}"
            history.add("ack", p=name, n=number, o=max(-1, _offset(message)), tp=key)
        elif error.code() in _NEVER_WRITTEN:
            history.add("fail", p=name, n=number, error=error.name())
        else:
            history.add("unknown", p=name, n=number, error=error.name())

    rng = random.Random(name)
    number, due = 0, time.monotonic()
    while not stop.asked:
        producer.poll(0)
        now = time.monotonic()
        is_full = len(outstanding) >= OUTSTANDING_MAX
        if now < due or is_full:
            history.flush()
            producer.poll(0.02 if is_full else min(max(due - now, 0.001), 0.05))
            # A load that was held up does not make up for it: it goes on at its rate.
            due = max(due, now - 1.0)
            continue
        due += period
        partition = number % options.partitions
        outstanding.add(number)
        more: dict[str, Any] = {"value": payload(f"{name}:{number}", options.size)}
        fields: dict[str, Any] = {}
        if options.keys:
            more["key"] = fields["k"] = f"k{rng.randrange(options.keys)}"
            if rng.random() < _REMOVAL_CHANCE:
                more |= {"value": None, "headers": {NAME_HEADER: f"{name}:{number}"}}
                fields["z"] = True
        history.add("send", p=name, n=number, tp=f"{options.topic}/{partition}", **fields)
        producer.produce(
            options.topic, partition=partition, on_delivery=partial(reported, number), **more
        )
        number += 1
    producer.flush(FLUSH_SECONDS_MAX)
    for left in sorted(outstanding):
        history.add("unknown", p=name, n=left, error="no outcome")
    history.flush()
    return 0


def _consumer(options: argparse.Namespace, **more: Any) -> Consumer:
    return Consumer(
        {
            **COMMON,
            "bootstrap.servers": options.bootstrap,
            "group.id": f"faults-{options.name}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "check.crcs": True,
            **debug_settings(options),
            **more,
        }
    )


def debug_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What a client did, to find the cause of an anomaly."""
    if _DEBUG_VARIABLE not in os.environ:
        return {}
    logger = logging.getLogger(options.name)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(logging.FileHandler(options.history.with_suffix(".debug")))
    return {"debug": os.environ[_DEBUG_VARIABLE], "log_level": 7, "logger": logger}


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _record_polled(
    history: History, name: str, messages: list[Message], **more: Any
) -> dict[str, int]:
    """One event per partition; returns the next offset of each."""
    polled: dict[str, list[tuple[int, str]]] = {}
    for message in messages:
        if message.error() is None:
            key = f"{message.topic()}/{message.partition()}"
            polled.setdefault(key, []).append((_offset(message), _name_of(message)))
    for key, records in polled.items():
        history.add("poll", c=name, tp=key, r=records, **more)
    return {key: records[-1][0] + 1 for key, records in polled.items()}


def consume(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Follow all partitions from their start, as a tailing reader does."""
    consumer = _consumer(options)
    consumer.assign([TopicPartition(options.topic, p, 0) for p in range(options.partitions)])
    history.add("assign", c=options.name)
    while not stop.asked:
        _record_polled(history, options.name, consumer.consume(500, timeout=0.1))
        history.flush()
    _close(consumer, history)
    return 0


def _close(consumer: Consumer, history: History) -> None:
    """Close it, with a deadline: what it saw is on record, and that it hung is, too."""
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS_MAX)
    if closing.is_alive():
        history.add("x-close-hung")
        history.flush()
        # Threads of the library may not be waited for either.
        os._exit(0)


def member(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Read as a member of a group, and commit what was read."""
    consumer = group_consumer(options)

    def changed(_: Consumer, __: list[TopicPartition]) -> None:
        history.add("assign", c=options.name)

    consumer.subscribe([options.topic], on_assign=changed, on_revoke=changed, on_lost=changed)
    while not stop.asked:
        messages = consumer.consume(200, timeout=0.2)
        positions = _record_polled(history, options.name, messages, g=_GROUP)
        history.flush()
        if positions:
            _commit(consumer, history, positions)
    _close(consumer, history)
    return 0


def _commit(consumer: Consumer, history: History, positions: dict[str, int]) -> None:
    offsets = [TopicPartition(*_topic_partition(key), offset) for key, offset in positions.items()]
    try:
        done = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        # A rebalance or a fail-over came first: the next owner reads the partition again.
        history.add("x-commit-failed", error=str(error))
        return
    for each in done or []:
        if each.error is None:
            history.add("commit", g=_GROUP, tp=f"{each.topic}/{each.partition}", o=each.offset)


def _topic_partition(key: str) -> tuple[str, int]:
    topic, _, partition = key.rpartition("/")
    return topic, int(partition)


def group_consumer(options: argparse.Namespace, **more: Any) -> Consumer:
    settings = {"group.id": _GROUP, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    return _consumer(options, **{**settings, **more})


def committed(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Put on record what the group has committed."""
    consumer = group_consumer(options)
    asked = [TopicPartition(options.topic, p) for p in range(options.partitions)]
    deadline = time.monotonic() + options.seconds
    while True:
        try:
            found = consumer.committed(asked, timeout=5.0)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                return EXIT_UNREAD
            time.sleep(0.2)
    for each in found:
        offset = max(0, each.offset)
        history.add("group", g=_GROUP, tp=f"{each.topic}/{each.partition}", o=offset)
    consumer.close()
    return 0


def bounds_of(
    consumer: Consumer, options: argparse.Namespace, deadline: float
) -> dict[str, tuple[int, int]]:
    """Start and end of every partition that tells them in time."""
    bounds: dict[str, tuple[int, int]] = {}
    for partition in range(options.partitions):
        key = f"{options.topic}/{partition}"
        while key not in bounds:
            try:
                bounds[key] = consumer.get_watermark_offsets(
                    TopicPartition(options.topic, partition), timeout=2.0
                )
            except KafkaException:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
    return bounds


def ask_bounds(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Put on record where the partitions start and end now."""
    consumer = _consumer(options)
    asked = time.monotonic_ns()
    bounds = bounds_of(consumer, options, time.monotonic() + options.seconds)
    for key, (low, high) in bounds.items():
        history.add("bounds", tp=key, start=low, end=high, asked=asked, expires=options.expires)
    consumer.close()
    return 0 if len(bounds) == options.partitions else EXIT_UNREAD


def read(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Read what there is from start to end, and put both on record."""
    consumer = _consumer(options, **{"enable.partition.eof": True})
    deadline, asked = time.monotonic() + options.seconds, time.monotonic_ns()
    bounds = bounds_of(consumer, options, deadline)
    consumer.assign(
        [
            TopicPartition(options.topic, int(key.rpartition("/")[2]), low)
            for key, (low, _) in bounds.items()
        ]
    )
    history.add("assign", c=options.name)
    open_keys = {key for key, (low, high) in bounds.items() if low < high}
    while open_keys and not stop.asked and time.monotonic() < deadline:
        messages = consumer.consume(1000, timeout=0.2)
        _record_polled(history, options.name, messages)
        for message in messages:
            error = message.error()
            key = f"{message.topic()}/{message.partition()}"
            at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
            if at_end or (error is None and _offset(message) + 1 >= bounds[key][1]):
                open_keys.discard(key)
    consumer.close()
    for key, (low, high) in bounds.items():
        operation = "bounds" if key in open_keys else "end"
        history.add(
            operation,
            c=options.name,
            tp=key,
            start=low,
            end=high,
            asked=asked,
            expires=options.expires,
        )
    history.flush()
    missing = len(bounds) < options.partitions
    return EXIT_UNREAD if open_keys or missing else 0


ROLES: dict[str, Callable[[argparse.Namespace, History, Stop], int]] = {
    "produce": produce,
    "consume": consume,
    "member": member,
    "bounds": ask_bounds,
    "read": read,
    "committed": committed,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.clients", description=__doc__)
    parser.add_argument("role", choices=["create", *ROLES])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--replication", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="client")
    parser.add_argument("--history", type=Path)
    parser.add_argument("--rate", type=float, default=500.0, help="records/s")
    parser.add_argument("--size", type=int, default=200, help="bytes of a record")
    parser.add_argument("--keys", type=int, default=0, help="of a compacted topic, per partition")
    parser.add_argument("--seconds", type=float, default=READ_SECONDS_MAX)
    parser.add_argument("--plain", action="store_true", help="no idempotence: retries may repeat")
    parser.add_argument("--acks", default="all", help="with less than all: no idempotence either")
    parser.add_argument("--expires", action="store_true", help="retention may delete records")
    options = parser.parse_args(arguments)
    if options.role == "create":
        return create(options)
    if options.history is None:
        parser.error("--history is needed")
    stop = Stop()
    with options.history.open("a") as file:
        return ROLES[options.role](options, History(file), stop)


if __name__ == "__main__":
    sys.exit(main())
