"""Delivery, the result of a send, and Outbox, which completes deliveries.

librdkafka reports deliveries to the thread that polls its handle. A busy sender polls every few
messages, because a second thread would compete for the interpreter with every report; a thread
waiting for a result polls too. Otherwise the Outbox thread polls.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from moldau.client.errors import ClientError, TimedOutError
from moldau.client.kafka import forks
from moldau.client.kafka.connect import translate
from moldau.client.kafka.transaction import fenced_hint

log = logging.getLogger(__name__)

POLL_EVERY_SENDS = 64
"""A power of two; rare enough to be cheap, often enough that reports don't pile up."""

PARTITION_UNASSIGNED = -1
"""librdkafka chooses: by key, or a random one for some time if there is no key."""

_IDLE_SECONDS = 0.05
_SLICE_SECONDS = 0.01
"""How long a waiter polls at a time: another thread may have completed its delivery."""
_FLUSH_SLICE_SECONDS = 0.5
_DISCARD_SECONDS_MAX = 5.0
_FAILURES_KEPT_MAX = 1000
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Receipt(NamedTuple):
    """Where a message was written. With acks=0 the offset is -1 (unknown)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""


class Delivery(msgspec.Struct, eq=False, weakref=True):
    """The future result of a send: a concurrent.futures.Future that cannot be cancelled.

    Thread-safe.
    """

    # Created for every message, so it must be cheap: a msgspec struct is created in C and has no
    # dict, and every outbox has a subclass that refers to it.
    _outbox: ClassVar["Outbox"]
    _error: ClientError | None = None
    _message: Message | None = None
    _callbacks: "deque[Callable[[Delivery], object]] | None" = None
    _seen: bool = False

    def done(self) -> bool:
        """Whether the message was acknowledged or has failed."""
        return self._message is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the acknowledgement. Raises the error of the message, or TimedOutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        message = self._settled()
        offset = message.offset()
        return Receipt(
            str(message.topic()),
            int(message.partition() or 0),
            offset if offset is not None and offset >= 0 else -1,
            message.timestamp()[1],
        )

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait; the error of the message, or None if it was acknowledged."""
        if self._message is None:
            self._outbox.wait_for(self, timeout)
        self._seen = True
        return self._error

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call it with this delivery when that is done, in the thread that polls librdkafka."""
        self._seen = True
        if self._callbacks is None:
            with self._outbox.lock:
                if self._callbacks is None:
                    self._callbacks = deque()
        # Append before the check: a thread that completes it meanwhile sees the callback, or we
        # see the message.
        self._callbacks.append(callback)
        self._outbox.listen()
        if self._message is not None:
            self._run_callbacks()

    def settle(self, error: KafkaError | None, message: Message) -> None:
        """Called by librdkafka: the delivery is done."""
        if error is not None:
            # The error is set before `_message`: a flush in another thread may read it.
            self._error = self._outbox.failure(error, message)
            self._outbox.remember(self, error)
        self._message = message
        if self._callbacks is not None:
            self._run_callbacks()

    def _settled(self) -> Message:
        if self._message is None:
            raise ClientError("the delivery is not done yet")
        return self._message

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            self._outbox.unlisten()
            try:
                callback(self)
            except Exception:
                # Any error: the callback is application code. It would be raised in an unrelated
                # call that happens to poll librdkafka, and would delay the next deliveries. So it
                # is logged, as concurrent.futures does.
                log.exception("delivery callback failed")

    def __repr__(self) -> str:
        if not self.done():
            return "<Delivery pending>"
        return f"<Delivery {self._error or self.result()!r}>"


class Outbox:
    """One librdkafka handle and its pending deliveries."""

    def __init__(
        self,
        client: Producer,
        brokers: str,
        kind: type[Delivery] = Delivery,
        on_fatal: "Callable[[ClientError], object] | None" = None,
    ) -> None:
        self.client = client
        self.produce: Callable[..., None] = client.produce
        self._fatal: KafkaError | None = None
        self._on_fatal = on_fatal
        self._copied = False
        self.brokers = brokers
        self.sends = 0
        self.delivery: type[Delivery] = type(kind.__name__, (kind,), {"_outbox": self})
        self.lock = threading.Lock()
        self._failures: deque[Delivery] = deque(maxlen=_FAILURES_KEPT_MAX)
        self._failures_dropped = 0
        self._listeners = 0
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="moldau-producer", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """The number of messages not acknowledged yet."""
        return len(self.client)

    def wait_for(self, delivery: Delivery, timeout: float | None) -> None:
        """Poll until the delivery is done. Raises TimedOutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not delivery.done():
            if self._copied:
                raise forks.copied_error("producer")
            if self._fatal is not None:
                raise self.broken(self._fatal)
            left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimedOutError(
                    f"not acknowledged by {self.brokers} within {timeout:g} s",
                    hint="the message is still retried; wait again, or check: moldau doctor",
                )
            self.poll(min(left, _SLICE_SECONDS))

    def broken(self, error: KafkaError) -> ClientError:
        """Our error for a fatal error: the handle cannot send any more."""
        return translate(error, brokers=self.brokers, doing="send", hint=fenced_hint(error))

    def poll(self, seconds: float) -> None:
        """Let librdkafka report deliveries."""
        try:
            self.client.poll(seconds)
        except KafkaException as error:
            self._note_fatal(error)

    def _note_fatal(self, error: KafkaException) -> None:
        # A fatal error is raised in the thread that polls next; kept for all waiters.
        cause = error.args[0]
        if not (isinstance(cause, KafkaError) and cause.fatal()):
            raise translate(error, brokers=self.brokers, doing="send") from error
        self._fatal = cause
        if self._on_fatal is not None:
            self._on_fatal(self.broken(cause))

    def flush(self, timeout: float) -> int:
        """Wait until all deliveries are done; the number that are not."""
        deadline = time.monotonic() + timeout
        # In slices, so that Ctrl-C is handled.
        while (left := deadline - time.monotonic()) > 0:
            try:
                if not self.client.flush(min(left, _FLUSH_SLICE_SECONDS)):
                    return 0
            except KafkaException as error:
                self._note_fatal(error)
        return len(self.client)

    def failure(self, error: KafkaError, message: Message) -> ClientError:
        """Our error for a message that failed."""
        purged = error.code() in _PURGED
        return translate(
            error,
            brokers=self.brokers,
            doing=f"send to {message.topic()}",
            hint="its transaction was aborted, or its producer closed too early" if purged else "",
        )

    def remember(self, delivery: Delivery, error: KafkaError) -> None:
        """Keep a failure, in case the program never reads the delivery."""
        if error.code() in _PURGED:
            # The caller aborted or closed, and knows.
            return
        with self.lock:
            if len(self._failures) == _FAILURES_KEPT_MAX:
                self._failures_dropped += not self._failures[0]._seen
            self._failures.append(delivery)

    def take_failures(self) -> tuple[int, list[ClientError]]:
        """The number of unread failures and the latest of them; marks them as read."""
        with self.lock:
            kept = [d._error for d in self._failures if not d._seen and d._error is not None]
            count = len(kept) + self._failures_dropped
            self._failures.clear()
            self._failures_dropped = 0
        return count, kept

    def listen(self) -> None:
        """A callback is waiting: the thread polls without pauses."""
        with self.lock:
            self._listeners += 1
        self._wanted.set()

    def unlisten(self) -> None:
        with self.lock:
            self._listeners -= 1
            if self._listeners == 0:
                self._wanted.clear()

    def discard(self) -> None:
        """Give up unacknowledged messages: their deliveries fail."""
        self.client.purge()
        self.flush(_DISCARD_SECONDS_MAX)

    def disable_after_fork(self) -> None:
        """In a forked child: deliveries are never completed here."""
        self._copied = True
        forks.keep_forever(self.client)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._wanted.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2)

    def _serve(self) -> None:
        seen = -1
        while not self._closing.is_set():
            is_wanted = self._wanted.wait(_IDLE_SECONDS)
            if self._closing.is_set():
                return
            if is_wanted or (self.sends == seen and len(self.client)):
                self.poll(_IDLE_SECONDS)
            seen = self.sends
