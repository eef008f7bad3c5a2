"""Schedules the requests to one ledger: one at a time per queue, queues in parallel.

A write blocks its queue until it is committed; later requests of the queue wait, and are checked
against what is stored then. Sans-IO: requests and commits in, writes and replies out.
"""

from collections import deque
from typing import Final, NamedTuple, TypeAlias

from moldau.leases.ledger import Ledger, Stored
from moldau.leases.records import tombstones
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId
from moldau.model.coordinator_events import (
    CoordinatorEvent,
    Persist,
    Persisted,
    PersistFailed,
    Reply,
    Tick,
)
from moldau.model.errors import ErrorCode

_WAITING_PER_QUEUE_MAX: Final = 32
"""A queue has one writer, two at a fail-over, and each waits for its reply."""


class WriteRecords(NamedTuple):
    """Encoded records of one queue, to be appended if they are the next ones."""

    request_id: int
    queue: QueueId
    records: tuple[Stored, ...]


class ForgetQueue(NamedTuple):
    """The queue's group or topic was deleted."""

    request_id: int
    queue: QueueId


class ReadStored(NamedTuple):
    """Read the stored records, after any write in progress."""

    request_id: int
    queue: QueueId


Request: TypeAlias = WriteRecords | ForgetQueue | ReadStored
Event: TypeAlias = Request | CoordinatorEvent
Result: TypeAlias = Refusal | tuple[Stored, ...] | ErrorCode
"""With an error code the request failed; after REQUEST_TIMED_OUT it may still be committed."""


Effect: TypeAlias = Reply[Result] | Persist


class LedgerScheduler:
    """A ledger and the requests that wait for it, in one epoch of its partition."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.loaded = False
        self._is_closed = False
        self._tokens = 0
        self._writing: dict[int, WriteRecords | ForgetQueue] = {}
        self._waiting: dict[QueueId, deque[Request]] = {}
        """Waiting requests of each queue that is being written."""

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    def next_deadline(self) -> float | None:
        return None

    # ---- loading and closing

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Raises CorruptionError."""
        self.ledger.replay(key, value)

    def finish_loading(self, now: float) -> list[Effect]:
        """Raises CorruptionError."""
        self.ledger.finish_loading()
        self.loaded = True
        return []

    def close(self, now: float, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Reply to all requests: waiting ones were not executed and may be retried on another
        broker; writes in progress may still be committed, so they time out. `error` is unused."""
        self._is_closed = True
        effects: list[Effect] = [
            Reply(request.request_id, ErrorCode.REQUEST_TIMED_OUT)
            for request in self._writing.values()
        ]
        effects += [
            Reply(request.request_id, ErrorCode.NOT_COORDINATOR)
            for waiting in self._waiting.values()
            for request in waiting
        ]
        self._writing.clear()
        self._waiting.clear()
        return effects

    # ---- events

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Raises CorruptionError if the bytes to write cannot be decoded."""
        match event:
            case Persisted(token=token):
                return self._on_persisted(self._writing.pop(token))
            case PersistFailed(token=token, error=error):
                failed = self._writing.pop(token)
                return [
                    Reply(failed.request_id, client_error(error)),
                    *self._execute_waiting(failed.queue),
                ]
            case Tick():
                return []
            case _:
                return self._submit(event)

    def _submit(self, request: Request) -> list[Effect]:
        if self._is_closed:
            return [Reply(request.request_id, ErrorCode.NOT_COORDINATOR)]
        if not self.loaded:
            return [Reply(request.request_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
        waiting = self._waiting.get(request.queue)
        if waiting is None:
            return [self._execute(request)]
        if len(waiting) >= _WAITING_PER_QUEUE_MAX:
            return [Reply(request.request_id, ErrorCode.THROTTLING_QUOTA_EXCEEDED)]
        waiting.append(request)
        return []

    def _execute(self, request: Request) -> Effect:
        """Execute a request; no write of the queue is in progress."""
        match request:
            case ReadStored(request_id=request_id, queue=queue):
                return Reply(request_id, self.ledger.stored(queue))
            case ForgetQueue(request_id=request_id, queue=queue):
                if not self.ledger.stored(queue):
                    return Reply(request_id, Refusal.NONE)
                return self._persist(request, tuple(tombstones(queue)))
            case WriteRecords(request_id=request_id, records=records):
                refusal = self.ledger.check(*records)
                if refusal is not Refusal.NONE:
                    return Reply(request_id, refusal)
                return self._persist(request, records)

    def _persist(
        self, request: WriteRecords | ForgetQueue, records: tuple[tuple[bytes, bytes | None], ...]
    ) -> Persist:
        self._tokens += 1
        self._writing[self._tokens] = request
        self._waiting.setdefault(request.queue, deque())
        return Persist(self._tokens, f"a queue of group {request.queue.group!r}", records)

    def _on_persisted(self, request: WriteRecords | ForgetQueue) -> list[Effect]:
        if isinstance(request, ForgetQueue):
            self.ledger.forget(request.queue)
        elif not all(self.ledger.apply(*record) for record in request.records):
            raise AssertionError("a record was committed that had not been checked")
        return [Reply(request.request_id, Refusal.NONE), *self._execute_waiting(request.queue)]

    def _execute_waiting(self, queue: QueueId) -> list[Effect]:
        """Execute waiting requests up to and including the next write."""
        waiting = self._waiting[queue]
        effects: list[Effect] = []
        while waiting:
            effect = self._execute(waiting.popleft())
            effects.append(effect)
            if isinstance(effect, Persist):
                return effects
        del self._waiting[queue]
        return effects


def client_error(error: ErrorCode) -> ErrorCode:
    """The error code for clients of the ledger, for an error of the append."""
    is_moved = error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NOT_COORDINATOR if is_moved else error
