"""Owns the order in which one ledger takes requests: one at a time of a queue, queues side by side.

A request that writes holds up its queue until it is committed; those that come meanwhile wait in
line, and are judged by what is stored then. Pure: requests and commits in, writes and answers out.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from moldau.groups.queue.ledger import Ledger, Stored
from moldau.groups.queue.records import tombstones
from moldau.groups.queue.results import Refusal
from moldau.groups.queue.state import QueueId
from moldau.model.errors import ErrorCode

_WAITING_PER_QUEUE_MAX: Final = 32
"""A queue has one writer, at a fail-over two; each of them waits for its answer."""


class WriteRecords(NamedTuple):
    """Records of one queue, as bytes, to be appended if they follow."""

    request_id: int
    queue: QueueId
    records: tuple[Stored, ...]


class ForgetQueue(NamedTuple):
    """The queue's group or topic is gone."""

    request_id: int
    queue: QueueId


class ReadStored(NamedTuple):
    """What is stored of the queue, once nothing of it is being written."""

    request_id: int
    queue: QueueId


class Persisted(NamedTuple):
    """What was to be persisted is committed."""

    token: int


class PersistFailed(NamedTuple):
    """Nothing was appended."""

    token: int
    error: ErrorCode


class Tick(NamedTuple):
    """Time passed; a ledger does not mind."""


Request: TypeAlias = WriteRecords | ForgetQueue | ReadStored
Event: TypeAlias = Request | Persisted | PersistFailed | Tick
Result: TypeAlias = Refusal | tuple[Stored, ...] | ErrorCode
"""A code: the request was not carried out. All but REQUEST_TIMED_OUT: and will not be."""


class Reply(NamedTuple):
    """The answer to a request."""

    request_id: int
    result: Result


class Persist(NamedTuple):
    """Append these records as one batch."""

    token: int
    queue: QueueId
    records: tuple[tuple[bytes, bytes | None], ...]


Effect: TypeAlias = Reply | Persist


class LedgerScheduler:
    """A ledger and those who wait for it, in one epoch of its partition."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._loaded = False
        self._is_closed = False
        self._tokens = 0
        self._writing: dict[int, WriteRecords | ForgetQueue] = {}
        self._lines: dict[QueueId, deque[Request]] = {}
        """Who waits, for each queue that is being written."""

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    @property
    def loaded(self) -> bool:
        return self._loaded

    def queues(self) -> Iterator[QueueId]:
        return self._ledger.queues()

    def next_deadline(self) -> float | None:
        return None

    # ---- loading and the end

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Raises CorruptionError."""
        self._ledger.replay(key, value)

    def finish_loading(self, now: float) -> list[Effect]:
        """Raises CorruptionError."""
        self._ledger.finish_loading()
        self._loaded = True
        return []

    def close(self, now: float, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Answer everybody. Whoever waits in line may ask elsewhere: nothing was done for them.

        `error` is not told: who was being written hears that nobody knows what became of it.
        """
        self._is_closed = True
        effects: list[Effect] = [
            Reply(request.request_id, ErrorCode.REQUEST_TIMED_OUT)
            for request in self._writing.values()
        ]
        effects += [
            Reply(request.request_id, ErrorCode.NOT_COORDINATOR)
            for line in self._lines.values()
            for request in line
        ]
        self._writing.clear()
        self._lines.clear()
        return effects

    # ---- events

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Raises CorruptionError for bytes to be written that are no record."""
        match event:
            case Persisted(token=token):
                return self._written(self._writing.pop(token))
            case PersistFailed(token=token, error=error):
                failed = self._writing.pop(token)
                return [Reply(failed.request_id, error), *self._go_on(failed.queue)]
            case Tick():
                return []
            case _:
                return [self._take(event)] if self._may_begin(event) else self._wait(event)

    def _may_begin(self, request: Request) -> bool:
        return self._loaded and not self._is_closed and request.queue not in self._lines

    def _wait(self, request: Request) -> list[Effect]:
        if self._is_closed:
            return [Reply(request.request_id, ErrorCode.NOT_COORDINATOR)]
        if not self._loaded:
            return [Reply(request.request_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
        line = self._lines[request.queue]
        if len(line) >= _WAITING_PER_QUEUE_MAX:
            return [Reply(request.request_id, ErrorCode.THROTTLING_QUOTA_EXCEEDED)]
        line.append(request)
        return []

    def _take(self, request: Request) -> Effect:
        """Nothing of the queue is being written."""
        match request:
            case ReadStored(request_id=request_id, queue=queue):
                return Reply(request_id, self._ledger.stored(queue))
            case ForgetQueue(request_id=request_id, queue=queue):
                if not self._ledger.stored(queue):
                    return Reply(request_id, Refusal.NONE)
                return self._persist(request, tuple(tombstones(queue)))
            case WriteRecords(request_id=request_id, records=records):
                refusal = self._ledger.judge(*records)
                if refusal is not Refusal.NONE:
                    return Reply(request_id, refusal)
                return self._persist(request, records)

    def _persist(
        self, request: WriteRecords | ForgetQueue, records: tuple[tuple[bytes, bytes | None], ...]
    ) -> Persist:
        self._tokens += 1
        self._writing[self._tokens] = request
        self._lines.setdefault(request.queue, deque())
        return Persist(self._tokens, request.queue, records)

    def _written(self, request: WriteRecords | ForgetQueue) -> list[Effect]:
        if isinstance(request, ForgetQueue):
            self._ledger.forget(request.queue)
        elif not all(self._ledger.apply(*record) for record in request.records):
            raise AssertionError("a record was committed that had not been judged")
        return [Reply(request.request_id, Refusal.NONE), *self._go_on(request.queue)]

    def _go_on(self, queue: QueueId) -> list[Effect]:
        """With whoever waits, until somebody writes or nobody is left."""
        line = self._lines[queue]
        effects: list[Effect] = []
        while line:
            effect = self._take(line.popleft())
            effects.append(effect)
            if isinstance(effect, Persist):
                return effects
        del self._lines[queue]
        return effects
