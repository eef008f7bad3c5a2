"""`moldau produce`: sends messages from arguments, a file or stdin, one per line."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moldau.cli.click_groups import command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    Properties,
    brokers_option,
    pairs_option,
    timeout_option,
    topic_argument,
)
from moldau.cli.output import counted, format_bytes, say
from moldau.cli.signals import Interrupts, deferrable_interrupts

if TYPE_CHECKING:
    from confluent_kafka import Producer

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")

_PROGRESS_SECONDS = 0.25
_LIMIT_KEY = "max.message.bytes"
LINE_BYTES_MAX = 64 * 1024 * 1024


Header = tuple[str, str | bytes | None]


class LineMessage(NamedTuple):
    key: bytes | None
    value: bytes | None

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


def split_lines(
    lines: Iterable[bytes], separator: str | None, *, key: str | None, tombstones: bool
) -> Iterator[LineMessage]:
    """Messages from lines; the key is the part before the separator, or `key`."""
    mark = separator.encode() if separator else None
    fixed = key.encode() if key is not None else None
    for line in lines:
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        line_key, value = fixed, text
        if mark is not None:
            head, found, rest = text.partition(mark)
            if found:
                line_key, value = head, rest
        yield LineMessage(line_key, None if tombstones and not value else value)


def read_lines(stream: Any) -> Iterator[bytes]:
    """Lines of a binary stream, of bounded length."""
    while line := stream.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise CommandError(f"a line is longer than {format_bytes(LINE_BYTES_MAX)}")
        yield line


class LineProducer:
    """Hands messages to librdkafka, counts acknowledgements, and keeps the first error."""

    def __init__(
        self, producer: "Producer", topic: str, interrupts: Interrupts, *, quiet: bool
    ) -> None:
        self._producer = producer
        self._interrupts = interrupts
        self._topic = topic
        self._shown = not quiet and sys.stderr.isatty()
        self._next_progress = 0.0
        self._started = time.monotonic()
        self.sent = 0
        self.sent_bytes = 0
        self.error: Any = None
        self.failed_bytes = 0
        """Size of the largest message that failed with `error`."""

    def fail(self, error: Any) -> None:
        """The first error is the cause, unless it only says that there was a fatal one."""
        from confluent_kafka import KafkaError

        if self.error is None or self.error.code() == KafkaError._FATAL:
            self.error = error

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.sent += 1
            self.sent_bytes += len(message)
        else:
            self.fail(error)
            if error.code() == self.error.code():
                self.failed_bytes = max(self.failed_bytes, len(message))

    def send(self, message: LineMessage, headers: list[Header], partition: int) -> None:
        """Queue one message; waits while the queue is full."""
        queued = False
        while not queued and self.error is None:
            with self._interrupts:
                queued = self._queue(message, headers, partition)
            self._progress()

    def _queue(self, message: LineMessage, headers: list[Header], partition: int) -> bool:
        try:
            self._producer.produce(
                self._topic,
                message.value,
                message.key,
                partition,
                self._delivered,
                headers=headers,
            )
        except BufferError:
            self._producer.poll(0.1)
            return False
        self._producer.poll(0)
        return True

    def finish(self, seconds_max: float) -> None:
        """Wait for all acknowledgements; after an error only for requests in flight."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + seconds_max
        purged = False
        while time.monotonic() < deadline:
            try:
                with self._interrupts:
                    if not self._producer.flush(0.1):
                        break
            except KafkaException as error:
                # A fatal one, such as a refused producer id: it fails the messages, too.
                self.fail(error.args[0])
            self._progress()
            if self.error is not None and not purged:
                self._producer.purge(in_flight=False)
                purged = True
        if self._shown and self._next_progress:
            sys.stderr.write("\r\033[K")

    def _progress(self) -> None:
        now = time.monotonic()
        if not self._shown or now < self._next_progress:
            return
        # Not for a run that ends within a moment.
        if self._next_progress or now - self._started > 2 * _PROGRESS_SECONDS:
            rate = format_bytes(self.sent_bytes / max(now - self._started, 0.001))
            sys.stderr.write(f"\r\033[K{self.sent:,} messages, {rate}/s")
            sys.stderr.flush()
            self._next_progress = now + _PROGRESS_SECONDS


@command(
    "produce",
    examples=(
        "echo hello | moldau produce greetings",
        "moldau produce orders -k : -m 'k1:first' -m 'k2:second' -H source=cli",
        "moldau produce logs --file app.log --compression zstd",
    ),
)
@topic_argument
@click.option("-m", "--message", "messages", multiple=True, help="A message; may be repeated.")
@click.option("--file", type=click.File("rb"), help="Read lines from a file instead of stdin.")
@click.option("-k", "--key-separator", metavar="TEXT", help="Separates key and value in a line.")
@click.option("--key", help="The key of every message.")
@pairs_option("-H", "--header", "headers", help_text="A header of every message")
@click.option("-p", "--partition", type=Integer(0), help="[default: by key, else any]")
@click.option("--tombstones", is_flag=True, help="Send an empty value as a tombstone (null).")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(ACKS), default="all", show_default=True)
@timeout_option("30s", "Delivery timeout of a message.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@brokers_option
def produce(
    topic: str,
    messages: tuple[str, ...],
    file: Any,
    key_separator: str | None,
    key: str | None,
    headers: Properties,
    partition: int | None,
    tombstones: bool,
    compression: str,
    acks: str,
    timeout: float,
    quiet: bool,
    brokers: str,
    properties: Properties,
) -> int:
    """Send messages to a topic: from -m, from a file, or each line of stdin."""
    from confluent_kafka import KafkaException

    if messages and file is not None:
        raise CommandError("--file and -m cannot be combined", code=ExitCode.USAGE)
    producer = _open(brokers, topic, partition, acks, compression, timeout, properties)
    lines = _source(messages, file, quiet)
    interrupted = False
    with deferrable_interrupts() as interrupts:
        sender = LineProducer(producer, topic, interrupts, quiet=quiet)
        try:
            for message in split_lines(lines, key_separator, key=key, tombstones=tombstones):
                sender.send(message, list(headers), -1 if partition is None else partition)
                if sender.error is not None:
                    break
        except KeyboardInterrupt:
            # Messages already read are still sent.
            interrupted = True
        except KafkaException as error:
            sender.fail(error.args[0])
            sender.failed_bytes = max(sender.failed_bytes, message.size)
        sender.finish(timeout + 1)
    _report(sender, topic, brokers, properties, len(producer), quiet)
    return ExitCode.INTERRUPTED if interrupted else ExitCode.OK


def _open(
    brokers: str,
    topic: str,
    partition: int | None,
    acks: str,
    compression: str,
    timeout: float,
    properties: Properties,
) -> "Producer":
    from moldau.cli.connection.preflight import check_login
    from moldau.client.errors import NotFoundError
    from moldau.client.kafka.connect import connect_producer, probe
    from moldau.client.kafka.librdkafka_settings import producer_settings

    check_login(brokers, dict(properties))
    probe(brokers, extra=dict(properties))
    own = {
        # librdkafka rejects less than its linger time.
        "message.timeout.ms": str(max(10, int(timeout * 1000))),
        # Fail soon if the topic does not exist and is not created automatically.
        "topic.metadata.propagation.max.ms": "5000",
    }
    settings = producer_settings(
        brokers, acks=acks, compression=compression, extra={**own, **dict(properties)}
    )
    producer, found = connect_producer(settings, topic)
    if partition is not None and found.partitions and partition not in found.partitions:
        raise NotFoundError(
            f"topic {topic} has no partition {partition}",
            hint=f"it has partitions 0 to {max(found.partitions)}",
        )
    return producer


def _source(messages: tuple[str, ...], file: Any, quiet: bool) -> Iterable[bytes]:
    if messages:
        return [message.encode() for message in messages]
    stream = file if file is not None else sys.stdin.buffer
    if file is None and sys.stdin.isatty() and not quiet:
        say("enter one message per line; Ctrl-D ends")
    return read_lines(stream)


def _report(
    sender: LineProducer, topic: str, brokers: str, properties: Properties, unsent: int, quiet: bool
) -> None:
    from confluent_kafka import KafkaError

    from moldau.client.errors import TimedOutError
    from moldau.client.kafka.connect import translate

    if sender.error is not None:
        sent = f"{counted(sender.sent, 'message')} acknowledged" if sender.sent else ""
        hint = " · ".join(part for part in (sent, _next_step(sender, topic)) if part)
        if sender.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            limit = _size_limit(topic, brokers, properties)
            text = f"a message of {sender.failed_bytes:,} bytes is larger than {limit}"
            raise CommandError(f"cannot produce to {topic}: {text}", hint=hint)
        raise translate(sender.error, brokers=brokers, doing=f"produce to {topic}", hint=hint)
    if unsent:
        raise TimedOutError(
            f"{counted(unsent, 'message')} to {topic} not acknowledged within the timeout",
            hint="wait longer with --timeout; see moldau broker status and the brokers' logs",
        )
    if not quiet:
        say(f"sent {counted(sender.sent, 'message')} to {topic}")


def _size_limit(topic: str, brokers: str, properties: Properties) -> str:
    from moldau.client.errors import ClientError
    from moldau.client.kafka.admin import Admin

    try:
        found = Admin(brokers, dict(properties)).topic_config(topic)
    except ClientError:
        found = []
    limits = [f" ({int(entry.value or 0):,})" for entry in found if entry.name == _LIMIT_KEY]
    return f"{_LIMIT_KEY} of the topic{''.join(limits)}"


def _next_step(sender: LineProducer, topic: str) -> str:
    from confluent_kafka import KafkaError

    code = sender.error.code()
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
        return f"create it: moldau topic create {topic}"
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return f"raise the limit: moldau topic alter {topic} --config {_LIMIT_KEY}=N"
    return ""
