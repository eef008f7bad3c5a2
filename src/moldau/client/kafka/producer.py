"""Producer: sends messages over librdkafka, with one handle per ack mode.

Every message is acknowledged, or its failure is reported by its Delivery, by flush or close, or in
the log.
"""

import logging
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import Producer as Client

from moldau import tracing
from moldau.client.config import Brokers, config_from
from moldau.client.encoding import (
    PLAIN_TYPES,
    Headers,
    Key,
    Value,
    encode_headers,
    encode_key,
    encode_timestamp,
    encode_value,
)
from moldau.client.errors import (
    BufferFullError,
    ClientError,
    DeliveryFailedError,
    InvalidArgumentError,
    TimedOutError,
)
from moldau.client.kafka import forks
from moldau.client.kafka.connect import connect_producer, probe, translate, translated
from moldau.client.kafka.deliveries import PARTITION_UNASSIGNED, POLL_EVERY_SENDS, Delivery, Outbox
from moldau.client.kafka.producer_config import (
    AckMode,
    Acks,
    ProducerConfig,
    ProducerSettings,
    ack_mode,
)
from moldau.client.kafka.transaction import Transaction, fenced_hint

log = logging.getLogger(__name__)

_EXIT_SECONDS_MAX = 10.0
"""How long an unclosed producer may delay the exit of the program."""
_ROOM_SECONDS = 0.05
_SENDS_MASK = POLL_EVERY_SENDS - 1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_HINT = "1 to 249 letters, digits, dots, - and _"
_DOCTOR_HINT = "is a broker down or its disk full? check: moldau doctor"


Settle = Callable[[KafkaError | None, RawMessage], None]


class UnbufferedMessage(NamedTuple):
    """A message for which the buffer had no room yet."""

    outbox: Outbox
    delivery: Delivery
    settle: Settle
    topic: str
    value: object
    key: object
    extra: Mapping[str, Any]


class Producer:
    """Sends messages. Thread-safe.

    Messages of one thread to one partition keep their order if they have the same ack mode.
    """

    def __init__(
        self,
        config: ProducerConfig | Brokers | None = None,
        /,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.config = config = config_from(ProducerConfig, config, settings)
        self._brokers = config.brokers
        self._mode = ack_mode(config.acks)
        self._lock = threading.Lock()
        self._outboxes: dict[AckMode, Outbox] = {}
        self._usual: Outbox | None = None
        self._transactions_ready = False
        self._transaction: Transaction | None = None
        self._closed = False
        self._copied = False
        probe(self._brokers, extra=config.properties)
        # Not a bound method, which would keep the producer alive.
        self._abandon = weakref.finalize(self, _abandoned, self._outboxes, self._brokers)
        forks.watch(self)

    def start(self) -> Self:
        """Does nothing; a producer is ready when constructed."""
        self._check_open()
        return self

    def send(
        self,
        topic: str,
        value: Value = None,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        acks: Acks | None = None,
    ) -> Delivery:
        """Put a message into the buffer. The Delivery is its future result.

        Waits up to max_block_ms while the buffer is full, then raises BufferFullError.
        """
        outbox = self._usual
        if outbox is None or acks is not None:
            outbox = self._outbox(topic, self._mode if acks is None else ack_mode(acks))
        if value.__class__ is not bytes and value.__class__ not in PLAIN_TYPES:
            value = encode_value(value)
        if key is not None and key.__class__ not in PLAIN_TYPES:
            key = encode_key(key)
        delivery = outbox.delivery()
        settle: Settle = delivery.settle
        sending = None
        if tracing.active is not None:
            sending = tracing.active.sending(topic, headers and encode_headers(headers))
            headers, settle = sending.headers, sending.settled_by(settle)
        try:
            if headers is None and partition is None and timestamp is None:
                # Positional: keyword arguments would cost a tenth of the whole call.
                outbox.produce(topic, value, key, PARTITION_UNASSIGNED, settle)
            else:
                extra = _extra(headers, partition, timestamp)
                outbox.produce(topic, value, key, on_delivery=settle, **extra)
        except BufferError:
            extra = _extra(headers, partition, timestamp)
            message = UnbufferedMessage(outbox, delivery, settle, topic, value, key, extra)
            self._send_when_not_full(message)
        except (KafkaException, TypeError, UnicodeEncodeError) as error:
            if sending is not None:
                sending.fail(error)
            if isinstance(error, KafkaException):
                raise self._cannot_send(topic, error) from error
            raise _unsendable(topic, error) from error
        outbox.sends = sends = outbox.sends + 1
        if not sends & _SENDS_MASK:
            outbox.poll(0)
        return delivery

    def send_many(
        self, topic: str, messages: Iterable[Value | tuple[Key, Value]], *, acks: Acks | None = None
    ) -> list[Delivery]:
        """Send values, or pairs of key and value, in order."""
        return [
            self.send(topic, value, key=key, acks=acks) for key, value in keys_and_values(messages)
        ]

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message sent so far is acknowledged.

        Raises TimedOutError if some are not yet (they are still retried), and DeliveryFailedError
        if some failed whose Delivery was not read. The default timeout is delivery_timeout_ms.
        """
        self._check_open()
        left = self._flush(timeout)
        if left:
            raise TimedOutError(
                f"{left} messages are not acknowledged by {self._brokers} in time",
                hint=f"they are still retried; {_DOCTOR_HINT}",
            )
        self._raise_failures()

    def close(self, timeout: float | None = None) -> None:
        """Flush and close. Raises TimedOutError if messages were given up after `timeout`."""
        if self._copied:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._usual = None
        left = self._flush(timeout)
        for outbox in list(self._outboxes.values()):
            if len(outbox):
                outbox.discard()
            outbox.close()
        # Not before: if Ctrl-C interrupts this, lost messages must still be reported at exit.
        self._abandon.detach()
        if left:
            raise TimedOutError(
                f"{left} messages were given up: not acknowledged by {self._brokers} in time",
                hint=f"their deliveries say which; {_DOCTOR_HINT}",
            )
        self._raise_failures()

    def transaction(self) -> Transaction:
        """`with producer.transaction():` the messages sent inside are committed atomically.

        Needs a transactional_id. One at a time.
        """
        if self.config.transactional_id is None:
            raise InvalidArgumentError(
                "this producer has no transactional_id",
                hint='Producer(..., transactional_id="a name that this worker keeps")',
            )
        outbox = self._outbox(None, self._mode)
        with self._lock:
            if self._transaction is not None and self._transaction.is_open:
                raise ClientError(
                    "a transaction is already open", hint="leave its with block first"
                )
            self._transaction = Transaction(
                outbox.client, self._brokers, ready=self._transactions_ready
            )
            self._transactions_ready = True
            return self._transaction

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} messages not acknowledged"
        return f"<{type(self).__name__} at {self._brokers}, {state}>"

    def __len__(self) -> int:
        """The number of messages not acknowledged yet."""
        return sum(len(outbox) for outbox in list(self._outboxes.values()))

    def __bool__(self) -> bool:
        """True, also if no messages are pending."""
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(_close_seconds(error))
        except ClientError as failure:
            if error is None:
                raise
            # The error being raised is more important, but this one must not be lost.
            log.error("closing the producer failed: %s", failure)

    def _outbox(self, topic: str | None, mode: AckMode) -> Outbox:
        self._check_open()
        outbox = self._outboxes.get(mode)
        if outbox is not None:
            return outbox
        if self.config.transactional_id is not None and mode is not AckMode.ALL:
            raise InvalidArgumentError(
                f'a transactional producer needs acks="all", not {mode.value}',
                hint="use a second producer for messages outside of transactions",
            )
        with self._lock:
            self._check_open()
            if (outbox := self._outboxes.get(mode)) is None:
                outbox = self._new_outbox(self._connect(topic, mode))
                self._outboxes[mode] = outbox
                if mode is self._mode:
                    self._usual = outbox
        return outbox

    def _new_outbox(self, client: Client) -> Outbox:
        return Outbox(client, self._brokers)

    def _connect(self, topic: str | None, mode: AckMode) -> Client:
        settings = self.config.settings(mode)
        if topic is not None and self.config.transactional_id is None:
            if not _TOPIC_NAME.fullmatch(topic):
                # The broker's error would not say what is wrong with the name.
                raise _invalid_topic(topic)
            return connect_producer(settings, topic)[0]
        with translated(self._brokers, "make a producer"):
            return Client(settings)

    def _send_when_not_full(self, message: UnbufferedMessage) -> None:
        """Wait until acknowledgements make room: backpressure for the sender."""
        wait_seconds = self.config.max_block_ms / 1000
        deadline = time.monotonic() + wait_seconds
        while True:
            left = deadline - time.monotonic()
            if self._try_to_put(message, max(0.0, min(_ROOM_SECONDS, left))):
                return
            if time.monotonic() >= deadline:
                raise self._buffer_full(message, wait_seconds)

    def _try_to_put(self, message: UnbufferedMessage, poll_seconds: float) -> bool:
        """Let librdkafka report deliveries; whether there was room in the buffer then."""
        outbox, _, settle, topic, value, key, extra = message
        outbox.poll(poll_seconds)
        try:
            outbox.produce(topic, value, key, on_delivery=settle, **extra)
        except BufferError:
            return False
        except KafkaException as error:
            raise self._cannot_send(topic, error) from error
        return True

    def _buffer_full(self, message: UnbufferedMessage, wait_seconds: float) -> BufferFullError:
        pending = len(message.outbox)
        return BufferFullError(
            f"cannot send to {message.topic}: the buffer is full; {pending} messages are not "
            f"acknowledged by {self._brokers}; timed out after {wait_seconds:g} s (max_block_ms)",
            hint=f"send less, or raise max_block_ms or buffer_memory; {_DOCTOR_HINT}",
        )

    def _flush(self, timeout: float | None) -> int:
        # librdkafka itself fails a message after delivery_timeout_ms.
        if timeout is None:
            timeout = self.config.delivery_timeout_ms / 1000 + 5
        deadline = time.monotonic() + timeout
        left = 0
        for outbox in list(self._outboxes.values()):
            left += outbox.flush(max(0.001, deadline - time.monotonic()))
        return left

    def _raise_failures(self) -> None:
        count, errors = 0, list[ClientError]()
        for outbox in list(self._outboxes.values()):
            unseen, latest = outbox.take_failures()
            count += unseen
            errors += latest
        if count:
            raise DeliveryFailedError(
                f"{count} messages failed: {errors[-1]}", errors, hint=errors[-1].hint
            )

    def _cannot_send(self, topic: str, error: KafkaException) -> ClientError:
        outside = self.config.transactional_id is not None and not (
            self._transaction is not None and self._transaction.is_open
        )
        hint = fenced_hint(error.args[0])
        if _code(error) == KafkaError.TOPIC_EXCEPTION:
            return _invalid_topic(topic)
        if outside and not hint:
            hint = "send inside `with producer.transaction():`"
        return translate(error, brokers=self._brokers, doing=f"send to {topic}", hint=hint)

    def disable_after_fork(self) -> None:
        """In a forked child: the parent sends what is pending."""
        self._copied = True
        self._usual = None
        self._abandon.detach()
        for outbox in self._outboxes.values():
            outbox.disable_after_fork()

    def _check_open(self) -> None:
        if self._copied:
            raise forks.copied_error("producer")
        if self._closed:
            raise ClientError("the producer is closed", hint="create a new one")


def _extra(
    headers: Headers | None, partition: int | None, timestamp: int | datetime | None
) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if headers is not None:
        extra["headers"] = encode_headers(headers)
    if partition is not None:
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            raise InvalidArgumentError(f"invalid partition {partition!r}", hint="an int, 0 or more")
        extra["partition"] = partition
    if timestamp is not None:
        extra["timestamp"] = encode_timestamp(timestamp)
    return extra


def _code(error: KafkaException) -> int | None:
    cause = error.args[0]
    return cause.code() if isinstance(cause, KafkaError) else None


def _unsendable(topic: object, error: TypeError | UnicodeEncodeError) -> InvalidArgumentError:
    if not isinstance(topic, str):
        return _invalid_topic(topic)
    return InvalidArgumentError(
        f"cannot send to {topic}: {error}", hint="text must be encodable as UTF-8"
    )


def _invalid_topic(topic: object) -> InvalidArgumentError:
    if not isinstance(topic, str):
        return InvalidArgumentError(f"the topic must be a string, not {topic!r}", hint=_TOPIC_HINT)
    return InvalidArgumentError(f"invalid topic name {topic!r}", hint=_TOPIC_HINT)


def keys_and_values(
    messages: Iterable[Value | tuple[Key, Value]],
) -> Iterator[tuple[Key, Value]]:
    """Pairs of key and value; the key of a plain value is None. Raises InvalidArgumentError."""
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidArgumentError(
            f"send_many needs a list of messages, not {type(messages).__name__}",
            hint="pass a list of values, or of (key, value)",
        )
    for message in messages:
        if not isinstance(message, tuple):
            yield None, message
        elif len(message) == 2:
            yield message
        else:
            raise InvalidArgumentError(
                f"a message must be a value or (key, value), not a tuple of {len(message)}",
                hint="pass a list of values, or of (key, value)",
            )


def _close_seconds(error: BaseException | None) -> float | None:
    """How long leaving a block may flush; short after Ctrl-C, exit and cancellation."""
    return None if error is None or isinstance(error, Exception) else _EXIT_SECONDS_MAX


def _abandoned(outboxes: dict[AckMode, Outbox], brokers: str) -> None:
    """A producer was dropped, or the program ends, without close: flush what is pending."""
    pending = sum(len(outbox) for outbox in outboxes.values())
    if pending:
        warnings.warn(
            f"a producer with {pending} pending messages was not closed; use `with` or close()",
            ResourceWarning,
            stacklevel=2,
        )
    deadline = time.monotonic() + _EXIT_SECONDS_MAX
    for outbox in outboxes.values():
        left = outbox.flush(max(0.001, deadline - time.monotonic()))
        failed, errors = outbox.take_failures()
        if left or failed:
            log.error(
                "lost %d messages of an unclosed producer: not acknowledged by %s at exit%s",
                left + failed,
                brokers,
                f" ({errors[-1]})" if errors else "",
            )
        outbox.close()
