"""Hosts the ledger of one `__queue_state` partition while this broker leads it, in one epoch."""

import asyncio
from collections.abc import Callable
from typing import Final, Unpack

from moldau.coordination.coordinator_host import CoordinatorHost, HostParts
from moldau.leases.ledger import Stored
from moldau.leases.results import Refusal
from moldau.leases.state import QueueId
from moldau.model.errors import ErrorCode, RefusedError
from moldau.queues.ledger_scheduler import (
    Event,
    ForgetQueue,
    LedgerScheduler,
    Result,
)

RESPONSE_SECONDS_MAX: Final = 10.0
"""A commit takes milliseconds; if it takes longer, the leader is about to be replaced."""


class LedgerHost(CoordinatorHost[LedgerScheduler, Event, Result]):
    def __init__(self, **parts: Unpack[HostParts]) -> None:
        super().__init__(LedgerScheduler(), **parts)
        self.topics_deleted = asyncio.Event()
        """Set by the owner: there may be queues of deleted topics."""

    async def request(self, make_event: Callable[[int], Event]) -> Refusal | tuple[Stored, ...]:
        """Raises RefusedError; after REQUEST_TIMED_OUT it may be committed or not."""
        try:
            async with asyncio.timeout(RESPONSE_SECONDS_MAX):
                result = await self.submit(make_event)
        except TimeoutError:
            result = ErrorCode.REQUEST_TIMED_OUT
        if isinstance(result, ErrorCode):
            raise RefusedError(result, f"{self.replica.partition}: {result.name}")
        return result

    async def forget(self, queue: QueueId) -> None:
        """Delete the records of a queue. Raises RefusedError."""
        await self.request(lambda request_id: ForgetQueue(request_id, queue))
