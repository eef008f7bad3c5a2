"""Worker: the blocking form of AsyncWorker."""

import functools
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from moldau.client.queue.batch_size import BatchSizer
from moldau.client.queue.loop_thread import LoopThread
from moldau.client.queue.message import AsyncQueueMessage, DeliveredMessage, QueueMessage
from moldau.client.queue.worker import (
    POLL_MESSAGES,
    POLL_WAIT_SECONDS,
    AsyncWorker,
)

T = TypeVar("T")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[AsyncWorker, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Worker", P], T]:
    """The same call for threads."""

    @functools.wraps(method)
    def call(self: "Worker", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._worker, *args, **kwargs))

    return call


class Worker:
    """A consumer of a group. Thread-safe."""

    def __init__(self, worker: AsyncWorker, loop: LoopThread) -> None:
        self._worker = worker
        self._loop = loop

    @property
    def asynchronous(self) -> AsyncWorker:
        """The worker behind it; only for the thread of the loop."""
        return self._worker

    @property
    def group(self) -> str:
        return self._worker.group

    @property
    def consumer(self) -> str:
        """The consumer id in the group; another one after an eviction."""
        return self._worker.consumer

    @property
    def mode(self) -> str:
        return self._worker.mode

    @property
    def visibility(self) -> float:
        """The default lease of a message in seconds."""
        return self._worker.visibility

    @property
    def dead_letter_topic(self) -> str:
        """The topic for messages after their last attempt; empty in ordered groups."""
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

        An outage shorter than the client's timeout looks like an empty queue; after that it raises
        UnreachableError or UnavailableError.
        """
        consumer, raws = self._loop.run(self._worker.poll_raw(max_messages, wait, visibility))
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
            self._loop.run(self._worker.give_back(messages))

    ack = _blocking(AsyncWorker.ack)
    nack = _blocking(AsyncWorker.nack)
    extend = _blocking(AsyncWorker.extend)
    ack_one = _blocking(AsyncWorker.ack_one)
    nack_one = _blocking(AsyncWorker.nack_one)
    extend_one = _blocking(AsyncWorker.extend_one)
    close = _blocking(AsyncWorker.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
