"""Owns the ledger of one partition of `__queue_state`, while this broker leads it in one epoch."""

import asyncio
from collections.abc import Callable
from typing import Final, assert_never

from moldau.coordination.coordinator_host import CoordinatorHost, CoordinatorReplica
from moldau.groups.queue.ledger import Stored
from moldau.groups.queue.results import Refusal
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.queues.ledger_scheduler import (
    Effect,
    Event,
    LedgerScheduler,
    Persist,
    Persisted,
    PersistFailed,
    Reply,
    Result,
    Tick,
)

ANSWER_SECONDS: Final = 10.0
"""A commit takes milliseconds. Where it takes longer, the leader is about to lose its place."""


class LedgerHost(CoordinatorHost[Event, Effect, Result]):
    """The ledger of one partition of `__queue_state`."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        replica: CoordinatorReplica,
        turns: asyncio.Lock,
        on_lost: Callable[["LedgerHost"], None],
    ) -> None:
        self.desk = LedgerScheduler()
        self.topics_deleted = asyncio.Event()
        """Set by the owner: there may be queues of topics that are gone."""
        super().__init__(
            loop=loop,
            clock=clock,
            core=self.desk,
            replica=replica,
            turns=turns,
            on_lost=lambda _: on_lost(self),
        )

    async def ask(self, make_event: Callable[[int], Event]) -> Refusal | tuple[Stored, ...]:
        """Raises RefusedError; with REQUEST_TIMED_OUT it may have been done or not."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                result = await self.submit(make_event)
        except TimeoutError:
            result = ErrorCode.REQUEST_TIMED_OUT
        if isinstance(result, ErrorCode):
            raise RefusedError(result, f"{self.replica.partition}: {result.name}")
        return result

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(request_id=request_id, result=result):
                self._answer(request_id, result)
            case Persist(token=token, records=records, queue=queue):
                self._persist(token, records, f"a queue of group {queue.group}")
            case _:
                assert_never(effect)

    def _persisted(self, token: int) -> Event:
        return Persisted(token)

    def _persist_failed(self, token: int, code: ErrorCode) -> Event:
        return PersistFailed(token, self._client_error(code))

    def _time_passed(self) -> Event:
        return Tick()

    def _client_error(self, code: ErrorCode) -> ErrorCode:
        is_moved = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NOT_COORDINATOR if is_moved else code
