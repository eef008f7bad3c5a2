"""Owns the adapters: four unmodified Kafka clients behind one small face, so that tests are one.

Each adapter can create a topic, produce a list of messages with a codec, and consume in a group.
What a client cannot say (kcat: timestamps, a header per message) shows in `sample`, the messages
that its tests send.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic

from moldau.testing.waiting import wait_seconds_max, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
TIMESTAMP_FIRST_MS = 1_700_000_000_000

_END = b"|end|"
"""Ends a message that kcat prints; nothing that is sent holds it."""

Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """One message as a test sends or receives it. Timestamp None: the client chose it."""

    partition: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Received(NamedTuple):
    """A message with its place."""

    topic: str
    offset: int
    message: Message


class Client(Protocol):
    name: str

    def create_topic(self, bootstrap: str, topic: str) -> None: ...

    def sample(self, count: int) -> list[Message]: ...

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str
    ) -> None: ...

    def consume(
        self, bootstrap: str, topics: Sequence[str], group: str, count: int
    ) -> list[Received]:
        """Join the group, read exactly `count` messages, commit, leave. Starts at the earliest."""
        ...


def varied(count: int, *, without_both: bool = True, null_headers: bool = True) -> list[Message]:
    """Ordinary messages, and among them all that is easily lost: nulls, empties, headers.

    Some clients refuse to send a message without both key and value, or a header without value.
    """
    messages = []
    for number in range(count):
        key: bytes | None = f"key-{number % 97}".encode()
        value: bytes | None = f"value-{number:06d} ".encode() * (1 + number % 7)
        headers: Headers = ()
        match number % 50:
            case 1:
                value = None
            case 2:
                key = None
            case 3:
                key = b""
            case 4:
                value = b""
            case 5 if without_both:
                key = value = None
            case 6:
                none = None if null_headers else b"none"
                headers = (("trace", b"\xff\x10\xfe"), ("none", none), ("empty", b""))
            case 7:
                headers = (("twice", b"first"), ("twice", b"second"), ("Größe", b"1"))
            case 8:
                value = bytes(range(256)) * 8
        messages.append(
            Message(number % PARTITIONS, TIMESTAMP_FIRST_MS + number * 3, key, value, headers)
        )
    return messages


class Confluent:
    name = "confluent-kafka"

    def sample(self, count: int) -> list[Message]:
        return varied(count)

    def create_topic(self, bootstrap: str, topic: str) -> None:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        asked = confluent_kafka.admin.NewTopic(topic, num_partitions=PARTITIONS)
        for future in admin.create_topics([asked]).values():
            future.result(wait_seconds_max())

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 3,
            }
        )
        for message in messages:
            producer.produce(
                topic,
                partition=message.partition,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=message.timestamp_ms or 0,
                on_delivery=delivered,
            )
            producer.poll(0)
        left = producer.flush(wait_seconds_max())
        assert (left, failures) == (0, [])

    def consume(
        self, bootstrap: str, topics: Sequence[str], group: str, count: int
    ) -> list[Received]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "check.crcs": True,
                "log_level": 3,
            }
        )
        consumer.subscribe(list(topics))
        received: list[Received] = []

        def has_all() -> bool:
            # Its types allow for None everywhere, for messages that were never sent.
            found: list[Any] = consumer.consume(min(1000, count - len(received)), 0.5)
            for got in found:
                assert got.error() is None, got.error()
                headers = tuple(got.headers() or ())
                message = Message(
                    got.partition(), got.timestamp()[1], got.key(), got.value(), headers
                )
                received.append(Received(got.topic(), got.offset(), message))
            return len(received) >= count

        try:
            wait_until(has_all, f"{count} messages are read", describe=lambda: len(received))
            positions = [
                confluent_kafka.TopicPartition(topic, partition, offset)
                for (topic, partition), offset in next_offsets(received).items()
            ]
            for committed in consumer.commit(offsets=positions, asynchronous=False):
                assert committed.error is None, committed.error
        finally:
            consumer.close()
        return received


class KafkaPython:
    name = "kafka-python"

    def sample(self, count: int) -> list[Message]:
        return varied(count, without_both=False, null_headers=False)

    def create_topic(self, bootstrap: str, topic: str) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.create_topics(
                [kafka.admin.NewTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)]
            )
        finally:
            admin.close()

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=5,
            batch_size=64 * 1024,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    partition=message.partition,
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(wait_seconds_max())
            for future in sent:
                assert future.succeeded(), future.exception
        finally:
            producer.close(wait_seconds_max())

    def consume(
        self, bootstrap: str, topics: Sequence[str], group: str, count: int
    ) -> list[Received]:
        consumer = kafka.KafkaConsumer(
            *topics,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            check_crcs=True,
        )
        received: list[Received] = []

        def has_all() -> bool:
            # A poll that ends between this client's assignment and the answer to its SyncGroup
            # forgets that it joined (3.0): the poll waits, and ends with the first messages.
            polled = consumer.poll(
                timeout_ms=int(1000 * wait_seconds_max()), max_records=count - len(received)
            )
            for records in polled.values():
                received.extend(map(_from_python, records))
            return len(received) >= count

        try:
            wait_until(has_all, f"{count} messages are read", describe=lambda: len(received))
            consumer.commit(
                {
                    kafka.TopicPartition(*place): kafka.OffsetAndMetadata(offset, "", -1)
                    for place, offset in next_offsets(received).items()
                }
            )
        finally:
            consumer.close()
        return received


class AioKafka:
    name = "aiokafka"

    def sample(self, count: int) -> list[Message]:
        return varied(count, without_both=False)

    def create_topic(self, bootstrap: str, topic: str) -> None:
        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                asked = AioNewTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
                await admin.create_topics([asked])
            finally:
                await admin.close()

        asyncio.run(asyncio.wait_for(create(), wait_seconds_max()))

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                linger_ms=5,
                max_batch_size=64 * 1024,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        partition=message.partition,
                        key=message.key,
                        value=message.value,
                        headers=list(message.headers),
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                await asyncio.gather(*sent)
            finally:
                await producer.stop()

        asyncio.run(asyncio.wait_for(send(), wait_seconds_max()))

    def consume(
        self, bootstrap: str, topics: Sequence[str], group: str, count: int
    ) -> list[Received]:
        async def read() -> list[Received]:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                check_crcs=True,
            )
            received: list[Received] = []
            await consumer.start()
            try:
                while len(received) < count:
                    polled = await consumer.getmany(
                        timeout_ms=500, max_records=count - len(received)
                    )
                    for records in polled.values():
                        received.extend(map(_from_python, records))
                await consumer.commit(
                    {
                        aiokafka.TopicPartition(*place): offset
                        for place, offset in next_offsets(received).items()
                    }
                )
            finally:
                await consumer.stop()
            return received

        return asyncio.run(asyncio.wait_for(read(), wait_seconds_max()))


class Kcat:
    """The command-line client. One call per partition, with other options each time."""

    name = "kcat"
    _options: tuple[tuple[str, ...], ...] = ((), ("-Z",), ("-H", "trace=abc", "-H", "empty="))

    def sample(self, count: int) -> list[Message]:
        """Partition 1 is sent with -Z: empty means null. Partition 2 has headers."""
        messages = []
        for number in range(count):
            partition = number % PARTITIONS
            key: bytes | None = f"key-{number % 97}".encode()
            value: bytes | None = f"value-{number:06d} ".encode() * (1 + number % 7)
            headers: Headers = ()
            absent = None if partition == 1 else b""
            if number % 50 in (1, 2, 3):
                value = absent
            elif number % 50 in (4, 5, 6):
                key = absent
            if partition == 2:
                headers = (("trace", b"abc"), ("empty", b""))
            messages.append(Message(partition, None, key, value, headers))
        return messages

    def create_topic(self, bootstrap: str, topic: str) -> None:
        """kcat has no admin client; asking for a topic creates it."""
        self._run(bootstrap, "-L", "-t", topic, "-X", "allow.auto.create.topics=true")

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        for partition, options in enumerate(self._options):
            lines = [
                b"%s:%s" % (message.key or b"", message.value or b"")
                for message in messages
                if message.partition == partition
            ]
            where = ("-t", topic, "-p", str(partition), "-K", ":", "-z", codec)
            self._run(
                bootstrap, "-P", *where, *options, "-X", "linger.ms=5", stdin=b"\n".join(lines)
            )

    def consume(
        self, bootstrap: str, topics: Sequence[str], group: str, count: int
    ) -> list[Received]:
        options = ("-X", "auto.offset.reset=earliest", "-X", "check.crcs=true")
        shape = ("-f", "%t %p %o %T %K %S\n%k%s%h" + _END.decode())
        printed = self._run(
            bootstrap, "-q", "-u", "-c", str(count), *options, *shape, "-G", group, *topics
        )
        received = []
        position = 0
        while position < len(printed):
            head_end = printed.index(b"\n", position)
            topic, *numbers = printed[position:head_end].split(b" ")
            partition, offset, timestamp, key_size, value_size = map(int, numbers)
            key_end = head_end + 1 + max(key_size, 0)
            value_end = key_end + max(value_size, 0)
            end = printed.index(_END, value_end)
            message = Message(
                partition,
                timestamp,
                None if key_size < 0 else printed[head_end + 1 : key_end],
                None if value_size < 0 else printed[key_end:value_end],
                _kcat_headers(printed[value_end:end]),
            )
            received.append(Received(topic.decode(), offset, message))
            position = end + len(_END)
        return received

    def _run(self, bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=wait_seconds_max(), check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout


def _kcat_headers(printed: bytes) -> Headers:
    """It prints name=value,name=value, and NULL for null."""
    if not printed:
        return ()
    pairs = (part.partition(b"=") for part in printed.split(b","))
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)


def _from_python(record: Any) -> Received:
    message = Message(
        record.partition,
        record.timestamp,
        record.key,
        record.value,
        tuple((name, value) for name, value in record.headers),
    )
    return Received(record.topic, record.offset, message)


def next_offsets(received: Sequence[Received]) -> dict[tuple[str, int], int]:
    """What to commit: one past the last message of each partition."""
    return {(got.topic, got.message.partition): got.offset + 1 for got in received}


def why_missing(name: str) -> str | None:
    """The reason why a client cannot be tested here; None if it can."""
    if name == Kcat.name and shutil.which("kcat") is None:
        return "kcat is not installed (package kcat of most distributions)"
    return None


CLIENTS: dict[str, Callable[[], Client]] = {
    client.name: client for client in (Kcat, Confluent, KafkaPython, AioKafka)
}
