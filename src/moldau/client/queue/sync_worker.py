"""Owns Worker: an AsyncWorker for programs with threads."""

from collections import deque
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Self

from moldau.client.queue.batch_size import BatchSizer
from moldau.client.queue.loop_thread import LoopThread
from moldau.client.queue.message import AsyncQueueMessage, DeliveredMessage, QueueMessage
from moldau.client.queue.worker import (
    POLL_MESSAGES,
    POLL_WAIT_SECONDS,
    AsyncWorker,
    Messages,
    RefusedMessage,
)


class Worker:
    """A consumer of a group. Any number of threads may use it."""

    def __init__(self, worker: AsyncWorker, loop: LoopThread) -> None:
        self._worker = worker
        self._loop = loop

    @property
    def asynchronous(self) -> AsyncWorker:
        """What it stands on; only for the loop's own thread."""
        return self._worker

    @property
    def group(self) -> str:
        return self._worker.group

    @property
    def consumer(self) -> str:
        """The name that the group knows it by; another one after an eviction."""
        return self._worker.consumer

    @property
    def mode(self) -> str:
        return self._worker.mode

    @property
    def visibility(self) -> float:
        """How many seconds a message is leased unless the poll says otherwise."""
        return self._worker.visibility

    @property
    def dead_letter_topic(self) -> str:
        """Where messages go after their last attempt; empty in ordered groups."""
        return self._worker.dead_letter_topic

    @property
    def is_closed(self) -> bool:
        return self._worker.is_closed

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are polled; in a queue group all of them."""
        return self._worker.assignment()

    def poll(
        self,
        max_messages: int = POLL_MESSAGES,
        wait: float = POLL_WAIT_SECONDS,
        *,
        visibility: float | None = None,
    ) -> list[QueueMessage]:
        """Up to `max_messages`, as soon as there are any; empty after `wait` seconds.

        While brokers are away for less than the client's timeout it looks as if there were nothing;
        after that it raises UnreachableError or UnavailableError.
        """
        consumer, raws = self._loop.run(self._worker.poll_raw(max_messages, wait, visibility))
        return [QueueMessage(raw, consumer, self) for raw in raws]

    def wrap(self, message: AsyncQueueMessage) -> QueueMessage:
        """The same message, to be settled from a thread."""
        return QueueMessage(message._raw, message.consumer, self)

    def __iter__(self) -> Iterator[QueueMessage]:
        """Messages one by one, without end; each is to be settled. Takes as many at a time as are
        done within their lease; what is left when the loop ends is given back."""
        pace = BatchSizer()
        rest: deque[QueueMessage] = deque()
        try:
            while not self.is_closed:
                rest.extend(self.poll(pace.count))
                pace.taken(len(rest))
                while rest:
                    yield rest.popleft()
                pace.done(self.visibility)
        finally:
            self.give_back(rest)

    def give_back(self, messages: Collection[DeliveredMessage]) -> None:
        """Let others have what was polled and is not wanted. An ordered group repeats it anyway."""
        if messages:
            self._loop.run(self._worker.give_back(messages))

    def ack(self, messages: Messages) -> list[RefusedMessage]:
        """They are done. Returns those that were refused: empty is all well.

        One that was acked before counts as done. In an ordered group everything before them in
        their partitions is done too.
        """
        return self._loop.run(self._worker.ack(messages))

    def nack(
        self, messages: Messages, *, delay: float | None = None, reason: str = ""
    ) -> list[RefusedMessage]:
        """They could not be done: deliver them again. Returns those that were refused."""
        return self._loop.run(self._worker.nack(messages, delay=delay, reason=reason))

    def extend(self, messages: Messages, seconds: float) -> list[RefusedMessage]:
        """They take longer: their leases last so long from now. Returns those that were refused."""
        return self._loop.run(self._worker.extend(messages, seconds))

    def ack_one(self, message: DeliveredMessage) -> None:
        """`ack` of one message, which raises."""
        self._loop.run(self._worker.ack_one(message))

    def nack_one(
        self, message: DeliveredMessage, *, delay: float | None = None, reason: str = ""
    ) -> None:
        """`nack` of one message, which raises."""
        self._loop.run(self._worker.nack_one(message, delay=delay, reason=reason))

    def extend_one(self, message: DeliveredMessage, seconds: float) -> None:
        """`extend` of one message, which raises."""
        self._loop.run(self._worker.extend_one(message, seconds))

    def close(self) -> None:
        """Leave the group: what is not settled is for others, at once."""
        self._loop.run(self._worker.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
