"""Owns the shell of one coordinator: loads it, feeds it events and time, runs its effects.

There is one per partition of an internal topic that this broker leads, for one epoch of that
partition: it loads what earlier leaders stored, writes in its own epoch only, and ends with it.
State that must survive is written to that partition; the coordinator hears of it only once it is
committed. A write that was appended and whose outcome nobody knows ends the coordinator: the log
may come to hold what it does not, so whoever goes on loads anew.

What is coordinated, groups or transactions, is the matter of the core inside and of a subclass that
knows its events and effects (`groups.py`, `transactions.py`).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from moldau.coordination.latest_records import LatestRecords
from moldau.log.interface import PartitionLog
from moldau.model.clock import Clock
from moldau.model.errors import CorruptionError, ErrorCode, RefusedError, StorageError
from moldau.model.ids import Epoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from moldau.records.batch import BatchFormatError, BatchHeader, read_header
from moldau.records.record import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Record,
    build_batch,
    read_records,
)
from moldau.replica.replica import Proposal
from moldau.replica.verification_guards import VerificationGuard

log = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")
E_in = TypeVar("E_in", contravariant=True)

_NEVER = float("inf")
LOAD_RECORDS_PER_TURN: Final = 200
"""Read in one turn of the loop, some milliseconds: heartbeats must not wait for a long log."""
_LOAD_BYTES_PER_READ = 256 * 1024


class CoordinatorCore(Protocol[E_in, F]):
    """A coordinator without its shell: events in, effects out."""

    @property
    def is_writing(self) -> bool: ...

    @property
    def loaded(self) -> bool: ...

    def replay(self, key: bytes, value: bytes | None) -> None: ...

    def finish_loading(self, now: float) -> list[F]: ...

    def close(self, now: float, error: ErrorCode = ...) -> list[F]: ...

    def handle(self, now: float, event: E_in) -> list[F]: ...

    def next_deadline(self) -> float | None: ...


class CoordinatorReplica(Protocol):
    """What a coordinator needs of the replica that stores its state."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def epoch(self) -> Epoch: ...

    @property
    def is_ready(self) -> bool: ...

    def propose(
        self,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        *,
        guard: VerificationGuard | None = None,
    ) -> Proposal: ...

    def guard_for(self, header: BatchHeader) -> VerificationGuard | None: ...

    def when_committed(self, offset: Offset, callback: Callable[[ErrorCode], None]) -> None: ...

    async def confirm_leadership(self) -> None: ...


class CoordinatorHost(ABC, Generic[E, F, R]):
    """What is stored in one partition, as long as this broker leads it in one epoch.

    `turns` is shared by all coordinators of the broker: one of them loads in a turn of the loop.
    `on_lost` is called when the coordinator ended by itself; everybody who waited is answered then.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        core: CoordinatorCore[E, F],
        replica: CoordinatorReplica,
        turns: asyncio.Lock,
        on_lost: Callable[["CoordinatorHost[E, F, R]"], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._turns = turns
        self._on_lost = on_lost
        self.replica = replica
        self.epoch = replica.epoch
        self._core = core
        self.loading: asyncio.Task[None] | None = None
        """Whatever ends with the coordinator; set by the owner."""
        self._is_over = False
        self._request_ids = 0
        self._waiting: dict[int, asyncio.Future[R]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    @property
    def loaded(self) -> bool:
        return self._core.loaded

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_current(self) -> bool:
        """Whether the replica still leads in the epoch that this coordinator was made for."""
        return not self._is_over and self.replica.epoch == self.epoch and self.replica.is_ready

    # ---- loading

    async def load(self) -> None:
        """Replay what is stored, in small pieces; until it is done, requests are told to wait.

        Raises RefusedError if leadership is lost meanwhile, and CorruptionError: some offsets
        would be worse than none.
        """
        stored = self.replica.log
        end = stored.end_offset
        # All that earlier leaders left is committed. A coordinator of this epoch before this one
        # may have left more: either all of it comes to be committed, or the epoch ends.
        await self._committed(end)
        latest = LatestRecords()
        read = await self._in_turns(
            self._stored_records(stored.start_offset, end), lambda item: latest.add(*item)
        )
        used = await self._replay(latest)
        self._run(self._core.finish_loading(self._now()))
        self._schedule()
        log.debug("%s is loaded: %d of %d records", self.replica.partition, used, read)

    async def _replay(self, latest: LatestRecords) -> int:
        """Hand what counts to the core; returns how many records that were."""
        return await self._in_turns(latest.items(), lambda item: self._core.replay(*item))

    async def _in_turns(self, items: Iterator[T], use: Callable[[T], None]) -> int:
        """Use all of them, a few in a turn of the loop; returns how many there were."""
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
        done: asyncio.Future[ErrorCode] = self._loop.create_future()

        def settled(code: ErrorCode) -> None:
            if not done.done():
                done.set_result(code)

        self.replica.when_committed(offset, settled)
        code = await done
        if code is not ErrorCode.NONE:
            raise RefusedError(code)

    def _stored_records(self, offset: Offset, end: Offset) -> Iterator[tuple[BatchHeader, Record]]:
        """Records below `end`. Each piece is looked up anew: the log's files may change between."""
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

    # ---- the end

    def answer_waiting(self) -> None:
        """The broker stops: refuse joins and syncs, which would wait for members that never come.

        Called until nothing is left: what is being written is answered when it is committed.
        """
        self._stop_loading()
        if not self._is_over and not self._core.is_writing:
            self._run(self._core.close(self._now()))

    def resign(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Leadership is lost: answer everybody who waits, also for writes that may yet survive."""
        if self._is_over:
            return
        self._run(self._core.close(self._now(), error))
        self._end()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RefusedError(error))

    def stop(self) -> None:
        """The process ends: whoever still waits sees the connection close."""
        self._end()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _end(self) -> None:
        self._is_over = True
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
        """Hand in a request; `make_event` gets its id. The result may take a whole rebalance.

        Raises RefusedError if it can no longer be answered here.
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

    def handle(self, event: E) -> None:
        self._run(self._core.handle(self._now(), event))
        self._schedule()

    # ---- effects and time

    def _now(self) -> float:
        return self._clock.monotonic()

    def _run(self, effects: list[F]) -> None:
        for effect in effects:
            self._carry_out(effect)

    @abstractmethod
    def _carry_out(self, effect: F) -> None:
        """Usually by `_answer` or `_persist`."""

    @abstractmethod
    def _persisted(self, token: int) -> E:
        """The event that says so."""

    @abstractmethod
    def _persist_failed(self, token: int, code: ErrorCode) -> E:
        """The event that says so."""

    @abstractmethod
    def _time_passed(self) -> E:
        """The event that says so."""

    @abstractmethod
    def _client_error(self, code: ErrorCode) -> ErrorCode:
        """An error of the log, as clients of the coordinator understand it."""

    def _answer(self, request_id: int, result: R) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def _persist(
        self,
        token: int,
        records: Sequence[tuple[bytes, bytes | None]],
        what: str,
        *,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> None:
        """Append as one batch; within a producer's transaction if one is named."""
        if not self.is_current:
            self._loop.call_soon(self._refused, token, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        now = self._clock.wall_ms()
        data = bytearray(
            build_batch(
                [Record(Offset(0), now, key, value, []) for key, value in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id != NO_PRODUCER_ID,
            )
        )

        def settled(code: ErrorCode) -> None:
            if self._is_over:
                return
            if code is ErrorCode.NONE:
                self.handle(self._persisted(token))
            else:
                self._lose(code)

        header = read_header(data)
        try:
            # The core has made sure that the transaction is open, until this very moment.
            guard = self.replica.guard_for(header) if header.is_transactional else None
            proposal = self.replica.propose(data, [header], guard=guard)
        except RefusedError as error:
            # Not from within the coordinator's own call: it hears of it in an event of its own.
            self._loop.call_soon(self._refused, token, error.code)
        except StorageError as error:
            log.error("%s could not be stored: %s", what, error)
            self._loop.call_soon(self._refused, token, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self.replica.when_committed(proposal.end_offset, settled)

    def _refused(self, token: int, code: ErrorCode) -> None:
        """Nothing was appended, so the state and the log agree; the leader may well go on."""
        if not self._is_over:
            self.handle(self._persist_failed(token, code))

    def _lose(self, code: ErrorCode) -> None:
        """Something was appended and may be committed or not: the state is worth nothing now."""
        self.resign(self._client_error(code))
        self._on_lost(self)

    def _schedule(self) -> None:
        deadline = None if self._is_over else self._core.next_deadline()
        # A timer that comes too early does no harm, and costs less than to set one anew each time
        # that a deadline is put off.
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self.handle(self._time_passed())
