"""Entry point of the transaction coordinator: loading, dispatch of events, and reads.

    for key, value in the partition: coordinator.replay(key, value)
    effects = coordinator.finish_loading(now)
    effects = coordinator.handle(now, event)      # for every event, from one thread
    ... run the effects; call handle(now, Tick()) at next_deadline() ...

`now` is monotonic seconds; `wall_ms` returns the timestamp that is stored. A coordinator serves the
transactional ids of one partition of `__transaction_state`, in one epoch of that partition.

Each id has at most one write in flight. A request that arrives meanwhile, or while a transaction is
ending, waits shortly and then gets CONCURRENT_TRANSACTIONS. The end of a transaction is durable
before any marker is sent, and markers are retried until every partition has one: by this
coordinator, or by the next one that loads its state.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import assert_never

from moldau.model.coordinator_events import (
    Persist,
    Persisted,
    PersistFailed,
    Reply,
    Tick,
    client_error,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import Epoch, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from moldau.model.timers import Timers
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.transactions import decide
from moldau.transactions.config import TransactionConfig
from moldau.transactions.decisions import (
    NoChange,
    Rejected,
    TransactionDecision,
    WaitForEnd,
    WriteState,
)
from moldau.transactions.events import (
    AddPartitions,
    EndTransaction,
    Event,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    Request,
    VerifyPartitions,
)
from moldau.transactions.invariants import check_invariants
from moldau.transactions.records import (
    TEXT_BYTES_MAX,
    StoredTransaction,
    TransactionRecord,
    TransactionState,
    decode,
    encode,
)
from moldau.transactions.replies import rejection, result_of
from moldau.transactions.results import (
    DescribedTransaction,
    Effect,
    ListedTransaction,
    NeedsProducerId,
    PartitionsResult,
    Result,
    WriteMarkers,
)
from moldau.transactions.timers import TimerKey, TimerKind
from moldau.transactions.totals import EndedTransactions, TransactionTotals
from moldau.transactions.transaction_entry import TransactionEntry, TransactionWrite

_EXPIRY = TimerKey(TimerKind.EXPIRY)


class TransactionCoordinator:
    """All transactional ids of one partition, while it is led in `epoch`."""

    def __init__(
        self,
        config: TransactionConfig,
        epoch: Epoch,
        wall_ms: Callable[[], TimestampMs],
        *,
        first_token: int = 1,
        ended: EndedTransactions | None = None,
    ) -> None:
        """`first_token` is above all tokens of earlier coordinators of the same epoch, so that
        partition leaders can recognise delayed marker requests. `ended`: shared by coordinators.
        """
        self._config = config
        self._ended = ended or EndedTransactions()
        self._epoch = epoch
        self._wall_ms = wall_ms
        self._entries: dict[str, TransactionEntry] = {}
        self._writes: dict[int, TransactionWrite] = {}
        self._marker_requests: dict[int, TransactionEntry] = {}
        """Marker requests in flight, by token."""
        self._timers = Timers[TimerKey]()
        self._effects: list[Effect] = []
        self._next_token = first_token
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # ---- life cycle

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a committed record, in log order. Raises CorruptionError if it is malformed."""
        record = decode(key, value)
        if record is None:
            return
        entry = self._entries.setdefault(
            record.transactional_id, TransactionEntry(record.transactional_id)
        )
        entry.stored = record.value
        if entry.is_empty:
            del self._entries[record.transactional_id]

    def finish_loading(self, now: float) -> list[Effect]:
        """Start serving, and continue what earlier coordinators began."""
        self._unavailable = ErrorCode.NONE
        self._schedule_expiry(now)
        for entry in list(self._entries.values()):
            self._state_stored(now, entry)
        return self._take_effects()

    def close(self, now: float, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Reply to all waiting requests, and reject every later one, with `error`."""
        self._unavailable = error
        writes, self._writes = list(self._writes.values()), {}
        for write in writes:
            write.entry.writing = None
            for request in (write.request, write.retried):
                if request is not None:
                    self._reply(request, rejection(request, error))
        for entry in self._entries.values():
            parked, entry.parked = entry.parked, {}
            for request in parked.values():
                self._reply(request, rejection(request, error))
        return [effect for effect in self._take_effects() if isinstance(effect, Reply)]

    @property
    def is_writing(self) -> bool:
        return bool(self._writes)

    @property
    def loaded(self) -> bool:
        return self._unavailable is ErrorCode.NONE

    # ---- events

    def handle(self, now: float, event: Event) -> list[Effect]:
        if self._unavailable is not ErrorCode.NONE:
            if isinstance(event, Request):
                self._reply(event, rejection(event, self._unavailable))
            return self._take_effects()
        match event:
            case Persisted():
                self._persisted(now, event.token)
            case AddPartitions() | VerifyPartitions() | EndTransaction() | InitProducer():
                self._request(now, event)
            case MarkersWritten():
                self._markers_written(now, event)
            case MarkersFailed():
                self._markers_failed(now, event)
            case PersistFailed():
                self._persist_failed(now, event.token, event.error)
            case Tick():
                self._run_timers(now)
            case _:
                assert_never(event)
        return self._take_effects()

    # ---- requests

    def is_open(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
    ) -> bool:
        """Whether VerifyPartitions would be answered at once, and with a yes for this partition."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.writing is not None or self._unavailable is not ErrorCode.NONE:
            return False
        stored = entry.stored
        return (
            stored is not None
            and stored.state is TransactionState.ONGOING
            and stored.producer_id == producer_id
            and stored.producer_epoch == producer_epoch
            and partition in stored.partitions
        )

    def _request(self, now: float, event: Request) -> None:
        error = self._request_error(event)
        if error is not ErrorCode.NONE:
            self._reply(event, rejection(event, error))
            return
        entry = self._entries.get(event.transactional_id)
        if entry is None:
            entry = TransactionEntry(event.transactional_id)
            self._entries[event.transactional_id] = entry
        if entry.writing is not None:
            self._park(now, entry, event)
        elif entry.is_marked:
            self._complete(now, entry, event)
        else:
            self._execute(now, entry, event, self._decide(entry.stored, event))
        self._forget_if_empty(entry)

    def _request_error(self, event: Request) -> ErrorCode:
        if not event.transactional_id or len(event.transactional_id.encode()) > TEXT_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
        if isinstance(event, InitProducer):
            if not 0 < event.timeout_ms <= self._config.timeout_ms_max:
                return ErrorCode.INVALID_TRANSACTION_TIMEOUT
            if (event.producer_id == NO_PRODUCER_ID) != (event.producer_epoch == NO_PRODUCER_EPOCH):
                return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _decide(self, stored: StoredTransaction | None, event: Request) -> TransactionDecision:
        match event:
            case AddPartitions():
                return decide.decide_add(stored, event, self._wall_ms())
            case VerifyPartitions():
                return decide.decide_verify(stored, event)
            case EndTransaction():
                return decide.decide_end(stored, event, self._wall_ms())
            case InitProducer():
                return decide.decide_init(stored, event, self._wall_ms())
            case _:
                assert_never(event)

    def _execute(
        self, now: float, entry: TransactionEntry, event: Request, decision: TransactionDecision
    ) -> None:
        match decision:
            case WriteState(stored=stored, retries=retries):
                if retries:
                    self._write(TransactionWrite(entry, [stored], retried=event))
                else:
                    self._write(TransactionWrite(entry, [stored], request=event))
            case WaitForEnd():
                self._park(now, entry, event)
            case Rejected() | NoChange() | NeedsProducerId():
                self._reply(event, result_of(event, decision, entry.stored))
            case _:
                assert_never(decision)

    def _park(self, now: float, entry: TransactionEntry, event: Request) -> None:
        wait_ms = self._config.busy_wait_ms_max
        if wait_ms == 0 or len(entry.parked) >= self._config.busy_waiting_max:
            self._reply(event, rejection(event, ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        entry.parked[event.request_id] = event
        self._timers.set(_busy_key(entry, event), now + wait_ms / 1000)

    def _unpark(self, now: float, entry: TransactionEntry) -> None:
        """The id may be free now: decide waiting requests again, in order."""
        for request_id, event in list(entry.parked.items()):
            if entry.writing is not None:
                return
            decision = self._decide(entry.stored, event)
            if isinstance(decision, WaitForEnd):
                return
            del entry.parked[request_id]
            self._timers.cancel(_busy_key(entry, event))
            self._execute(now, entry, event, decision)

    # ---- writes

    def _write(self, write: TransactionWrite) -> None:
        token = write.entry.writing = self._next_token
        self._next_token += 1
        name = write.entry.transactional_id
        self._writes[token] = write
        self._effects.append(
            Persist(
                token=token,
                what=f"transactional id {name!r}",
                records=tuple(
                    encode(TransactionRecord(transactional_id=name, value=state))
                    for state in write.states
                ),
            )
        )

    def _persisted(self, now: float, token: int) -> None:
        write = self._finish(token)
        if write is None:
            return
        entry = write.entry
        entry.stored = write.states[-1]
        self._ended.note(entry.stored)
        if write.request is not None:
            result = result_of(write.request, NoChange(), entry.stored)
            if isinstance(result, PartitionsResult):
                result = PartitionsResult(errors=result.errors, is_stored=True)
            self._reply(write.request, result)
        if write.retried is not None:
            self._park(now, entry, write.retried)
        entry.retries = 0
        self._state_stored(now, entry)
        self._unpark(now, entry)
        self._forget_if_empty(entry)

    def _persist_failed(self, now: float, token: int, error: ErrorCode) -> None:
        write = self._finish(token)
        if write is None:
            return
        for request in (write.request, write.retried):
            if request is not None:
                self._reply(request, rejection(request, client_error(error)))
        entry = write.entry
        if len(write.states) > 1 or (write.request is None and write.retried is None):
            # No client will retry it.
            self._retry_later(now, entry)
        self._unpark(now, entry)
        self._forget_if_empty(entry)

    def _finish(self, token: int) -> TransactionWrite | None:
        # An unknown token was abandoned, or its result was reported twice.
        write = self._writes.pop(token, None)
        if write is not None:
            write.entry.writing = None
        return write

    def _forget_if_empty(self, entry: TransactionEntry) -> None:
        if entry.is_empty and self._entries.get(entry.transactional_id) is entry:
            del self._entries[entry.transactional_id]
            self._timers.cancel(entry.retry_key)

    # ---- consequences of the stored state

    def _state_stored(self, now: float, entry: TransactionEntry) -> None:
        """Start timers and markers for a new stored state."""
        stored = entry.stored
        timeout = entry.timeout_key
        if stored is None or stored.state is not TransactionState.ONGOING:
            entry.deadline = None
            self._timers.cancel(timeout)
        elif entry.deadline is None:
            # By the wall clock, since another coordinator may have begun it; capped, so that a
            # changed clock cannot extend it.
            left_ms = stored.started_at + stored.timeout_ms - self._wall_ms()
            entry.deadline = now + max(0, min(left_ms, stored.timeout_ms)) / 1000
            self._timers.set(timeout, entry.deadline)
        if stored is not None and stored.state.is_prepared:
            entry.unmarked = set(stored.partitions)
            self._finish_or_send_markers(now, entry, waits=True)

    def _finish_or_send_markers(self, now: float, entry: TransactionEntry, *, waits: bool) -> None:
        """A transaction is prepared: send missing markers, or store the completion.

        `waits`: give the next transaction time to begin, to save a write.
        """
        stored = entry.stored
        if stored is None or not stored.state.is_prepared or entry.writing is not None:
            return
        if entry.is_marked:
            wait_ms = self._config.complete_wait_ms
            if waits and wait_ms and not entry.parked:
                self._timers.set(entry.retry_key, now + wait_ms / 1000)
            else:
                self._complete(now, entry, next(iter(entry.parked.values()), None))
            return
        missing = sorted(entry.unmarked.difference(*entry.marker_requests.values()))
        if not missing:
            return
        token = self._next_token
        self._next_token += 1
        entry.marker_requests[token] = set(missing)
        self._marker_requests[token] = entry
        self._effects.append(
            WriteMarkers(
                token=token,
                transactional_id=entry.transactional_id,
                producer_id=stored.producer_id,
                producer_epoch=stored.producer_epoch,
                is_commit=stored.state is TransactionState.PREPARE_COMMIT,
                coordinator_epoch=self._epoch,
                client_version=stored.client_version,
                partitions=tuple(missing),
            )
        )

    def _complete(self, now: float, entry: TransactionEntry, event: Request | None) -> None:
        """Store the completion, together with the state that `event` leads to, if any."""
        stored = entry.stored
        if stored is None:
            return
        self._timers.cancel(entry.retry_key)
        ended = decide.completed(stored, self._wall_ms())
        decision = None if event is None else self._decide(ended, event)
        if event is not None and isinstance(decision, WriteState) and not decision.retries:
            if entry.parked.pop(event.request_id, None) is not None:
                self._timers.cancel(_busy_key(entry, event))
            self._write(TransactionWrite(entry, [ended, decision.stored], request=event))
            return
        self._write(TransactionWrite(entry, [ended]))
        if event is not None and event.request_id not in entry.parked:
            self._park(now, entry, event)

    def _markers_written(self, now: float, event: MarkersWritten) -> None:
        entry = self._marker_requests.get(event.token)
        if entry is None:
            return
        waiting = entry.marker_requests[event.token]
        entry.unmarked -= waiting & event.partitions
        self._markers_reported(entry, event.token, waiting - event.partitions)
        if not entry.unmarked:
            self._finish_or_send_markers(now, entry, waits=True)

    def _markers_failed(self, now: float, event: MarkersFailed) -> None:
        entry = self._marker_requests.get(event.token)
        if entry is None:
            return
        waiting = entry.marker_requests[event.token]
        if waiting & event.partitions:
            self._markers_reported(entry, event.token, waiting - event.partitions)
            self._retry_later(now, entry)

    def _markers_reported(
        self, entry: TransactionEntry, token: int, still_waiting: set[TopicPartition]
    ) -> None:
        entry.marker_requests[token] = still_waiting
        if not still_waiting:
            del entry.marker_requests[token], self._marker_requests[token]

    # ---- timers

    def next_deadline(self) -> float | None:
        """When the next Tick is due."""
        return None if self._unavailable is not ErrorCode.NONE else self._timers.next_deadline()

    def _run_timers(self, now: float) -> None:
        while (key := self._timers.pop_due(now)) is not None:
            if key.kind is TimerKind.EXPIRY:
                self._expire()
                self._schedule_expiry(now)
                continue
            entry = self._entries.get(key.transactional_id)
            if entry is None:
                continue
            match key.kind:
                case TimerKind.TIMEOUT:
                    self._time_out(now, entry)
                case TimerKind.RETRY:
                    self._finish_or_send_markers(now, entry, waits=False)
                case TimerKind.BUSY:
                    event = entry.parked.pop(key.request_id, None)
                    if event is not None:
                        self._reply(event, rejection(event, ErrorCode.CONCURRENT_TRANSACTIONS))

    def _time_out(self, now: float, entry: TransactionEntry) -> None:
        """Abort a transaction that timed out; retried until that is stored."""
        stored = entry.stored
        if stored is None or stored.state is not TransactionState.ONGOING:
            return
        again = self._config.retry_ms_max / 1000
        self._timers.set(entry.timeout_key, now + again)
        if entry.writing is None:
            self._write(TransactionWrite(entry, [decide.timed_out(stored, self._wall_ms())]))

    def _retry_later(self, now: float, entry: TransactionEntry) -> None:
        if self._timers.deadline(entry.retry_key) is None:
            pause_ms = self._config.retry_ms_min << min(entry.retries, 16)
            entry.retries += 1
            pause_ms = min(pause_ms, self._config.retry_ms_max)
            self._timers.set(entry.retry_key, now + pause_ms / 1000)

    def _expire(self) -> None:
        now_ms = self._wall_ms()
        for entry in list(self._entries.values()):
            stored = entry.stored
            if (
                stored is not None
                and entry.writing is None
                and decide.is_expired(stored, now_ms, self._config.id_expiry_ms)
            ):
                self._write(TransactionWrite(entry, [None]))

    def _schedule_expiry(self, now: float) -> None:
        self._timers.set(_EXPIRY, now + self._config.id_expiry_check_ms / 1000)

    # ---- reads

    def describe(self, transactional_id: str) -> DescribedTransaction:
        error = self._unavailable
        entry = self._entries.get(transactional_id)
        stored = entry.stored if entry is not None else None
        if error is ErrorCode.NONE and stored is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if error is not ErrorCode.NONE or stored is None:
            return DescribedTransaction(error=error)
        return DescribedTransaction(
            error=ErrorCode.NONE,
            state=stored.state.value,
            producer_id=stored.producer_id,
            producer_epoch=stored.producer_epoch,
            timeout_ms=stored.timeout_ms,
            started_at=stored.started_at,
            partitions=stored.partitions,
        )

    def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms_min: int = -1,
    ) -> tuple[ErrorCode, list[ListedTransaction]]:
        """Transactions in these states, of these producers, and open for at least this long."""
        if self._unavailable is not ErrorCode.NONE:
            return self._unavailable, []
        wanted, producers = frozenset(states), frozenset(producer_ids)
        before = self._wall_ms() - duration_ms_min
        listed = []
        for name, entry in self._entries.items():
            stored = entry.stored
            if (
                stored is None
                or (wanted and stored.state.value not in wanted)
                or (producers and stored.producer_id not in producers)
                or (duration_ms_min >= 0 and not 0 <= stored.started_at <= before)
            ):
                continue
            listed.append(
                ListedTransaction(
                    transactional_id=name, producer_id=stored.producer_id, state=stored.state.value
                )
            )
        return ErrorCode.NONE, listed

    def totals(self) -> TransactionTotals | None:
        """None while it loads, or is closed."""
        if self._unavailable is not ErrorCode.NONE:
            return None
        ids: Counter[str] = Counter()
        oldest: TimestampMs | None = None
        for entry in self._entries.values():
            if (stored := entry.stored) is None:
                continue
            ids[stored.state.value] += 1
            if stored.state is TransactionState.ONGOING:
                started_at = stored.started_at
                oldest = started_at if oldest is None else min(oldest, started_at)
        return TransactionTotals(ids, ids[TransactionState.ONGOING.value], oldest)

    # ---- tests and simulation

    def check_invariants(self) -> None:
        """Raises InvariantError if the state is inconsistent; for tests and the simulator."""
        check_invariants(self._entries, self._writes, self._timers)

    # ---- effects

    def _reply(self, request: Request, result: Result) -> None:
        self._effects.append(Reply(request_id=request.request_id, result=result))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _busy_key(entry: TransactionEntry, event: Request) -> TimerKey:
    return TimerKey(TimerKind.BUSY, entry.transactional_id, event.request_id)
