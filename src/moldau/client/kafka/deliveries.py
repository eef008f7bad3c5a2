"""Owns what became of sent messages: Delivery, and the Outbox that settles deliveries.

librdkafka reports a delivery to whoever polls its handle. A busy sender polls by itself every few
messages, since a second thread would fight it for the interpreter with every report; so does
whoever waits for a result. A thread of the Outbox polls when nobody else does.
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
"""A power of two. Rarely enough to cost nothing, often enough that reports don't pile up."""

PARTITION_UNASSIGNED = -1
"""librdkafka chooses: by the key, or at random for a while without one."""

_IDLE_SECONDS = 0.05
_SLICE_SECONDS = 0.01
"""How long a waiter polls at a time: another thread may have settled what it waits for."""
_FLUSH_SLICE_SECONDS = 0.5
_DISCARD_SECONDS_MAX = 5.0
_FAILURES_KEPT_MAX = 1000
_GIVEN_UP = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Receipt(NamedTuple):
    """Where a message is. With acks=0 nobody said, and offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""


class Delivery(msgspec.Struct, eq=False, weakref=True):
    """The result of a send, to come: like a concurrent.futures.Future that cannot be cancelled.

    May be used from any thread.
    """

    # Made for every message, so it must be cheap: a struct of msgspec is made in C and has no
    # dict, and every outbox has a subclass that names it.
    _outbox: ClassVar["Outbox"]
    _error: ClientError | None = None
    _message: Message | None = None
    _callbacks: "deque[Callable[[Delivery], object]] | None" = None
    _seen: bool = False

    def done(self) -> bool:
        """Whether it is decided."""
        return self._message is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait, and say where the message is. Raises why it failed, or TimedOutError."""
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
        """Wait, and say why the message failed, or None if it did not."""
        if self._message is None:
            self._outbox.wait_for(self, timeout)
        self._seen = True
        return self._error

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Call it with this delivery once that is decided, in the thread that finds out."""
        self._seen = True
        if self._callbacks is None:
            with self._outbox.lock:
                if self._callbacks is None:
                    self._callbacks = deque()
        # First there, then looked: whoever settles it meanwhile finds the callback or is found.
        self._callbacks.append(callback)
        self._outbox.listen()
        if self._message is not None:
            self._run_callbacks()

    def settle(self, error: KafkaError | None, message: Message) -> None:
        """For librdkafka alone: it is decided."""
        if error is not None:
            # Before anybody is told of a failure, it says why: a flush in another thread looks.
            self._error = self._outbox.failure(error, message)
            self._outbox.remember(self, error)
        self._message = message
        if self._callbacks is not None:
            self._run_callbacks()

    def _settled(self) -> Message:
        if self._message is None:
            raise ClientError("the delivery is not decided")
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
                # Any error at all, since the callback is the application's: it would come out of
                # whichever call of librdkafka happens to report, in a thread and to a caller that
                # have nothing to do with it, and the deliveries behind this one would wait. So it
                # is logged, as concurrent.futures does.
                log.exception("a callback of a delivery failed")

    def __repr__(self) -> str:
        if not self.done():
            return "<Delivery pending>"
        return f"<Delivery {self._error or self.result()!r}>"


class Outbox:
    """One librdkafka handle, and the deliveries that it owes."""

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
        """Messages that nobody has acknowledged yet."""
        return len(self.client)

    def wait_for(self, delivery: Delivery, timeout: float | None) -> None:
        """Poll until the delivery is settled. Raises TimedOutError."""
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
                    hint="the message is still on its way; ask again, or: moldau doctor",
                )
            self.poll(min(left, _SLICE_SECONDS))

    def broken(self, error: KafkaError) -> ClientError:
        """Our error for one after which this handle sends nothing any more."""
        return translate(error, brokers=self.brokers, doing="send", hint=fenced_hint(error))

    def poll(self, seconds: float) -> None:
        """Let librdkafka report deliveries."""
        try:
            self.client.poll(seconds)
        except KafkaException as error:
            self._note_fatal(error)

    def _note_fatal(self, error: KafkaException) -> None:
        # What ends the handle is raised in whichever thread polls next: kept for those concerned.
        cause = error.args[0]
        if not (isinstance(cause, KafkaError) and cause.fatal()):
            raise translate(error, brokers=self.brokers, doing="send") from error
        self._fatal = cause
        if self._on_fatal is not None:
            self._on_fatal(self.broken(cause))

    def flush(self, timeout: float) -> int:
        """Wait until all is settled; says how many messages are not."""
        deadline = time.monotonic() + timeout
        # In slices, so that Ctrl-C gets a word in.
        while (left := deadline - time.monotonic()) > 0:
            try:
                if not self.client.flush(min(left, _FLUSH_SLICE_SECONDS)):
                    return 0
            except KafkaException as error:
                self._note_fatal(error)
        return len(self.client)

    def failure(self, error: KafkaError, message: Message) -> ClientError:
        """Our error for a message that failed."""
        given_up = error.code() in _GIVEN_UP
        return translate(
            error,
            brokers=self.brokers,
            doing=f"send to {message.topic()}",
            hint="its transaction was aborted, or its producer closed too early"
            if given_up
            else "",
        )

    def remember(self, delivery: Delivery, error: KafkaError) -> None:
        """Keep a failure in mind in case that nobody ever looks at the delivery."""
        if error.code() in _GIVEN_UP:
            # Whoever aborts or closes knows already.
            return
        with self.lock:
            if len(self._failures) == _FAILURES_KEPT_MAX:
                self._failures_dropped += not self._failures[0]._seen
            self._failures.append(delivery)

    def take_failures(self) -> tuple[int, list[ClientError]]:
        """How many failures nobody has looked at, and the latest of them; then they are told."""
        with self.lock:
            kept = [d._error for d in self._failures if not d._seen and d._error is not None]
            count = len(kept) + self._failures_dropped
            self._failures.clear()
            self._failures_dropped = 0
        return count, kept

    def listen(self) -> None:
        """Somebody waits for a callback: the thread polls without a pause."""
        with self.lock:
            self._listeners += 1
        self._wanted.set()

    def unlisten(self) -> None:
        with self.lock:
            self._listeners -= 1
            if self._listeners == 0:
                self._wanted.clear()

    def discard(self) -> None:
        """Give up what is not acknowledged: those deliveries fail."""
        self.client.purge()
        self.flush(_DISCARD_SECONDS_MAX)

    def left_behind(self) -> None:
        """In a forked process: nothing is settled here any more."""
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
            asked = self._wanted.wait(_IDLE_SECONDS)
            if self._closing.is_set():
                return
            if asked or (self.sends == seen and len(self.client)):
                self.poll(_IDLE_SECONDS)
            seen = self.sends
