"""Owns the shell of one group coordinator: feeds it events and time, carries out its effects.

There is one per partition of `__consumer_offsets` that this broker leads. State that must survive
is written to that partition; the coordinator hears of it only once it is committed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from moldau.groups.coordinator import Coordinator
from moldau.groups.events import Event, Persisted, PersistFailed, Tick
from moldau.groups.results import Effect, Persist, Reply, Result
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError, StorageError
from moldau.model.ids import Offset
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.replica import Replica

log = logging.getLogger(__name__)

_NEVER = float("inf")


class PartitionCoordinator:
    """The groups that are stored in one partition."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        coordinator: Coordinator,
        replica: Replica,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._replica = replica
        self.state = coordinator
        """For reads, which need no effects: describe, list, fetch offsets."""
        self._request_ids = 0
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    # ---- start and stop

    def load(self) -> None:
        """Replay what is stored. Raises CorruptionError: some offsets would be worse than none."""
        stored = self._replica.log
        count = 0
        for batch in stored.batches(stored.start_offset):
            for record in read_records(batch):
                if record.key is not None:
                    self.state.replay(record.key, record.value)
                    count += 1
        self._run(self.state.finish_loading(self._now()))
        self._schedule()
        log.debug("groups of %s loaded: %d records", self._replica.partition, count)

    def answer_waiting(self) -> None:
        """The broker stops: refuse joins and syncs, which would wait for members that never come.

        Called until nothing is left: what is being written is answered when it is committed.
        """
        if not self.state.is_writing:
            self._run(self.state.close(self._now()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    # ---- requests

    async def submit(self, make_event: Callable[[int], Event]) -> Result:
        """Hand in a request; `make_event` gets its id. The result may take a whole rebalance."""
        self._request_ids += 1
        request_id = self._request_ids
        waiting: asyncio.Future[Result] = self._loop.create_future()
        self._waiting[request_id] = waiting
        try:
            self.handle(make_event(request_id))
            return await waiting
        finally:
            self._waiting.pop(request_id, None)

    def handle(self, event: Event) -> None:
        self._run(self.state.handle(self._now(), event))
        self._schedule()

    # ---- effects and time

    def _now(self) -> float:
        return self._clock.monotonic()

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(request_id=request_id, result=result):
                    waiting = self._waiting.get(request_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(result)
                case Persist():
                    self._persist(effect)
                case _:
                    assert_never(effect)

    def _persist(self, effect: Persist) -> None:
        now = self._clock.wall_ms()
        data = bytearray(
            build_batch([Record(Offset(0), now, key, value, []) for key, value in effect.records])
        )
        token = effect.token

        def settled(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.handle(Persisted(token=token))
            else:
                self.handle(PersistFailed(token=token, error=code))

        try:
            proposal = self._replica.propose(data, [read_header(data)])
        except RefusedError as error:
            # Not from within the coordinator's own call: it hears of it in an event of its own.
            self._loop.call_soon(settled, error.code)
        except StorageError as error:
            log.error("offsets of group %s were not stored: %s", effect.group_id, error)
            self._loop.call_soon(settled, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._replica.when_committed(proposal.end_offset, settled)

    def _schedule(self) -> None:
        deadline = self.state.next_deadline()
        if deadline is None:
            deadline = _NEVER
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline != _NEVER:
            self._timer = self._loop.call_later(max(0.0, deadline - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self.handle(Tick())
