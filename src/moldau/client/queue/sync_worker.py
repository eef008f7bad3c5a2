"""Worker: the blocking form of AsyncWorker."""

from collections import deque
from collections.abc import Collection, Iterator

from moldau.client.queue.batch_size import BatchSizer
from moldau.client.queue.loop_thread import Blocking, blocking
from moldau.client.queue.message import DeliveredMessage
from moldau.client.queue.worker import (
    POLL_MESSAGES,
    POLL_WAIT_SECONDS,
    AsyncQueueMessage,
    AsyncWorker,
    raise_refused,
)
from moldau.proto.v1 import queue_pb2 as pb


class QueueMessage(DeliveredMessage):
    """A message of a Worker."""

    __slots__ = ("_worker",)

    def __init__(self, raw: pb.Message, consumer: str, worker: "Worker") -> None:
        super().__init__(raw, consumer)
        self._worker = worker

    def ack(self) -> None:
        """Mark it as done. Raises LeaseLostError if its lease was lost."""
        raise_refused(self._worker.ack(self))

    def nack(self, *, delay: float | None = None, reason: str = "") -> None:
        """Redeliver it, after `delay` seconds or the group's backoff."""
        raise_refused(self._worker.nack(self, delay=delay, reason=reason))

    def extend(self, seconds: float) -> None:
        """Extend its lease to `seconds` from now."""
        raise_refused(self._worker.extend(self, seconds))


class Worker(Blocking[AsyncWorker]):
    """A consumer of a group. Thread-safe."""

    @property
    def group(self) -> str:
        return self._asynchronous.group

    @property
    def consumer(self) -> str:
        """The consumer id in the group; another one after an eviction."""
        return self._asynchronous.consumer

    @property
    def mode(self) -> str:
        return self._asynchronous.mode

    @property
    def visibility(self) -> float:
        """The default lease of a message in seconds."""
        return self._asynchronous.visibility

    @property
    def dead_letter_topic(self) -> str:
        """The topic for messages after their last attempt; empty in ordered groups."""
        return self._asynchronous.dead_letter_topic

    @property
    def is_closed(self) -> bool:
        return self._asynchronous.is_closed

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are polled; in a queue group all of them."""
        return self._asynchronous.assignment()

    def poll(
        self,
        max_messages: int = POLL_MESSAGES,
        wait: float = POLL_WAIT_SECONDS,
        *,
        visibility: float | None = None,
    ) -> list[QueueMessage]:
        """Up to `max_messages`, as soon as there are any; empty after `wait` seconds.

        An outage shorter than the client's timeout looks like an empty queue; after that it raises
        UnreachableError or UnavailableError.
        """
        consumer, raws = self._loop.run(self._asynchronous.poll_raw(max_messages, wait, visibility))
        return [QueueMessage(raw, consumer, self) for raw in raws]

    def wrap(self, message: AsyncQueueMessage) -> QueueMessage:
        """The same message, to be settled from a thread."""
        return QueueMessage(message._raw, message.consumer, self)

    def __iter__(self) -> Iterator[QueueMessage]:
        """Yields messages forever; each must be settled. Polls as many at a time as are done within
        their lease; the rest is given back when the loop ends."""
        sizer = BatchSizer()
        rest: deque[QueueMessage] = deque()
        try:
            while not self.is_closed:
                rest.extend(self.poll(sizer.count))
                sizer.taken(len(rest))
                while rest:
                    yield rest.popleft()
                sizer.done(self.visibility)
        finally:
            self.give_back(rest)

    def give_back(self, messages: Collection[DeliveredMessage]) -> None:
        """Return unprocessed messages to the queue. An ordered group redelivers them anyway."""
        if messages:
            self._loop.run(self._asynchronous.give_back(messages))

    ack = blocking(AsyncWorker.ack)
    nack = blocking(AsyncWorker.nack)
    extend = blocking(AsyncWorker.extend)
    close = blocking(AsyncWorker.close)
