"""Hosts one sans-IO coordinator: loads it, passes it events and ticks, and runs its effects.

There is one host per partition of an internal topic that this broker leads, for one epoch of that
partition: it loads what earlier leaders stored, writes only in its own epoch, and ends with it.
Durable state is written to that partition, and the coordinator is notified when it is committed. If
the outcome of an append is unknown, the coordinator ends, because its state may differ from the
log; its successor loads from scratch.

`group_service`, `transaction_service` and `queues.ledger_host` have a subclass each.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack

from moldau.coordination.latest_records import LatestRecords
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.compiled import mypyc_attr
from moldau.model.coordinator_events import (
    CoordinatorEvent,
    Persist,
    Persisted,
    PersistFailed,
    Reply,
    Tick,
    client_error,
)
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError, StorageError
from moldau.model.ids import Offset
from moldau.records.batch import BatchFormatError, BatchHeader, read_header
from moldau.records.record import NO_PRODUCER_ID, Record, build_batch, read_records
from moldau.replica.raft_replica import wait_for_code
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")
E_in = TypeVar("E_in", contravariant=True)

_NEVER = float("inf")
LOAD_RECORDS_PER_TURN: Final = 200
"""Records per turn of the event loop, some milliseconds: heartbeats must not be delayed."""
_LOAD_BYTES_PER_READ = 256 * 1024


class CoordinatorCore(Protocol[E_in, F]):
    """A sans-IO coordinator: events in, effects out."""

    @property
    def is_writing(self) -> bool: ...

    @property
    def loaded(self) -> bool: ...

    def replay(self, key: bytes, value: bytes | None) -> None: ...

    def finish_loading(self, now: float) -> list[F]: ...

    def close(self, now: float, error: ErrorCode = ...) -> list[F]: ...

    def handle(self, now: float, event: E_in | CoordinatorEvent) -> list[F]: ...

    def next_deadline(self) -> float | None: ...


S = TypeVar("S", bound=CoordinatorCore[Any, Any])


class HostParts(TypedDict):
    """Dependencies of a host.

    `turns` is shared by all hosts of the broker: only one of them loads at a time. `on_lost` is
    called when the coordinator ended by itself, after all waiting requests got a reply.
    """

    loop: asyncio.AbstractEventLoop
    clock: Clock
    replica: Replica
    turns: asyncio.Lock
    on_lost: Callable[[Any], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class CoordinatorHost(Generic[S, E, R]):
    """The coordinator of one partition, in one epoch of this broker's leadership."""

    def __init__(self, state: S, **parts: Unpack[HostParts]) -> None:
        self.state = state
        """The coordinator itself; for reads, which have no effects."""
        self._loop = parts["loop"]
        self._clock = parts["clock"]
        self._turns = parts["turns"]
        self._on_lost = parts["on_lost"]
        self.replica = parts["replica"]
        self.epoch = self.replica.epoch
        self.loading: asyncio.Task[None] | None = None
        """The loading task, cancelled with the coordinator; set by the service."""
        self.is_over = False
        self._request_ids = 0
        self._waiting: dict[int, asyncio.Future[R]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    @property
    def is_current(self) -> bool:
        """Whether the replica still leads in the epoch of this coordinator."""
        return not self.is_over and self.replica.epoch == self.epoch and self.replica.is_ready

    # ---- loading

    async def load(self) -> None:
        """Replay the stored records in small pieces; requests are rejected until it is done.

        Raises RefusedError if leadership is lost, and CorruptionError: a partly loaded state would
        be worse than none.
        """
        stored = self.replica.log
        end = stored.end_offset
        # Records of earlier leaders are committed. An earlier coordinator of this epoch may have
        # appended more: either that is committed, or the epoch ends.
        await self._committed(end)
        latest = LatestRecords()
        read = await self._in_turns(
            self._stored_records(stored.start_offset, end), lambda item: latest.add(*item)
        )
        used = await self._replay(latest)
        self._run(self.state.finish_loading(self._now()))
        self._schedule()
        log.debug("%s: coordinator loaded %d of %d records", self.replica.partition, used, read)

    async def _replay(self, latest: LatestRecords) -> int:
        """Replay the latest records; returns their number."""
        return await self._in_turns(latest.items(), lambda item: self.state.replay(*item))

    async def _in_turns(self, items: Iterator[T], use: Callable[[T], None]) -> int:
        """Process all items, some per turn of the event loop; returns their number."""
        count = 0
        while True:
            async with self._turns:
                if not self.is_current:
                    raise RefusedError(ErrorCode.NOT_COORDINATOR)
                some = list(islice(items, LOAD_RECORDS_PER_TURN))
                for item in some:
                    use(item)
                count += len(some)
                if len(some) < LOAD_RECORDS_PER_TURN:
                    return count
                await asyncio.sleep(0)

    async def _committed(self, offset: Offset) -> None:
        """Returns when everything below `offset` is committed. Raises RefusedError."""
        code = await wait_for_code(partial(self.replica.when_committed, offset))
        if code is not ErrorCode.NONE:
            raise RefusedError(code)

    def _stored_records(self, offset: Offset, end: Offset) -> Iterator[tuple[BatchHeader, Record]]:
        """Records below `end`. Each piece is read separately: segments may change in between."""
        while offset < end:
            piece: list[bytes] = []
            size = 0
            for batch in self.replica.log.batches(offset):
                header = read_header(batch)
                if header.base_offset >= end or size >= _LOAD_BYTES_PER_READ:
                    break
                piece.append(batch)
                size += header.size
                offset = header.next_offset
            if not piece:
                return
            for batch in piece:
                header = read_header(batch)
                try:
                    for record in read_records(batch):
                        yield header, record
                except BatchFormatError as error:
                    raise CorruptionError(f"{self.replica.partition}: {error}") from error

    # ---- end of life

    def reject_waiting(self) -> None:
        """The broker stops: reject waiting joins and syncs.

        Call it repeatedly: requests with a write in flight get their reply when it is committed.
        """
        self._stop_loading()
        if not self.is_over and not self.state.is_writing:
            self._run(self.state.close(self._now()))

    def resign(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Lost leadership: reject all waiting requests, even if their write may still commit."""
        if self.is_over:
            return
        self._run(self.state.close(self._now(), error))
        self._end()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RefusedError(error))

    def stop(self) -> None:
        """The process ends: cancel waiting requests; their connections close."""
        self._end()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _end(self) -> None:
        self.is_over = True
        self._stop_loading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_loading(self) -> None:
        loading, self.loading = self.loading, None
        if loading is not None:
            loading.cancel()

    # ---- requests

    async def submit(self, make_event: Callable[[int], E]) -> R:
        """Submit a request; `make_event` gets its id. The result may take a whole rebalance.

        Raises RefusedError if the coordinator ends.
        """
        self._request_ids += 1
        request_id = self._request_ids
        waiting: asyncio.Future[R] = self._loop.create_future()
        self._waiting[request_id] = waiting
        try:
            self.handle(make_event(request_id))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    def handle(self, event: E | CoordinatorEvent) -> None:
        self._run(self.state.handle(self._now(), event))
        self._schedule()

    # ---- effects and timers

    def _now(self) -> float:
        return self._clock.monotonic()

    def _run(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect.request_id, effect.result)
            elif isinstance(effect, Persist):
                self._persist(effect)
            else:
                self._execute(effect)

    def _execute(self, effect: object) -> None:
        """Run an effect that only coordinators of this kind have."""
        raise TypeError(f"unknown effect {type(effect).__name__}")

    def _reply(self, request_id: int, result: R) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def _persist(self, effect: Persist) -> None:
        """Append as one batch; within a transaction if a producer is given."""
        token, (producer_id, producer_epoch) = effect.token, effect.producer
        if not self.is_current:
            self._loop.call_soon(self._append_failed, token, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        now = self._clock.wall_ms()
        data = bytearray(
            build_batch(
                [Record(Offset(0), now, key, value, []) for key, value in effect.records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id != NO_PRODUCER_ID,
            )
        )

        def settled(code: ErrorCode) -> None:
            if self.is_over:
                return
            if code is ErrorCode.NONE:
                self.handle(Persisted(token))
            else:
                self._lose(code)

        header = read_header(data)
        try:
            # The coordinator has verified the transaction, each time and with its id.
            guard = self.replica.guard_for(header, "") if header.is_transactional else None
            proposal = self.replica.propose(data, [header], guard=guard)
        except RefusedError as error:
            # Not from within the coordinator's own call: as a separate event.
            self._loop.call_soon(self._append_failed, token, error.code)
        except StorageError as failure:
            log.error(
                "%s: storing %s failed: %s",
                self.replica.partition,
                effect.what[:300],
                failure,
                extra=events.COORDINATOR_WRITE_FAILED(),
            )
            self._loop.call_soon(self._append_failed, token, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            proposal.when_committed(settled)

    def _append_failed(self, token: int, code: ErrorCode) -> None:
        """Nothing was appended, so state and log agree: the coordinator continues."""
        if not self.is_over:
            self.handle(PersistFailed(token, code))

    def _lose(self, code: ErrorCode) -> None:
        """An append may be committed or not: the state may differ from the log."""
        self.resign(client_error(code))
        self._on_lost(self)

    def _schedule(self) -> None:
        deadline = None if self.is_over else self.state.next_deadline()
        # An early timer does no harm, and is cheaper than a new one for each postponed deadline.
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self.handle(Tick())
