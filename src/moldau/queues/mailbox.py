"""What waits for a queue: commands, read-only queries, and polls.

A poll waits for the decision of one queue, or is parked at several until one has a message. The
queue that decides for it claims it first, so that no two queues give it messages.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field

from moldau.leases.commands import Command
from moldau.leases.results import CommandResult
from moldau.leases.state_machine import QueueStateMachine
from moldau.model.ids import TimestampMs
from moldau.queues.types import Delivery, PollResult, QueueRefusedError

R = TypeVar("R")
Query = Callable[[QueueStateMachine, TimestampMs], R]
MakeCommand = Callable[[TimestampMs], Command]
"""Creates a command when its turn has come, with the time of the round."""


def fail(future: asyncio.Future[Any] | None, error: QueueRefusedError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        # If the caller was cancelled, nothing retrieves the exception; that must not be logged.
        future.exception()


def _new_future() -> asyncio.Future[PollResult]:
    return asyncio.get_running_loop().create_future()


class PendingCommand(NamedTuple):
    """A command to decide. `future` None: no caller waits for the result."""

    make: MakeCommand
    future: asyncio.Future[CommandResult] | None
    token_count: int = 0


class PendingQuery(NamedTuple):
    """A read-only query, run between two rounds: it sees committed state only."""

    query: Query[Any]
    future: asyncio.Future[Any]


class PendingPoll(Struct, kw_only=True, eq=False):
    """A poll of one member for up to `count_max` messages."""

    member: str
    count_max: int
    bytes_max: int
    visibility_ms: int | None
    """None: the setting of the group."""
    is_parked: bool = False
    """Otherwise it is completed at once, even without messages."""
    is_strict: bool = False
    """Not even a single message may exceed `bytes_max`."""
    future: asyncio.Future[PollResult] = field(default_factory=_new_future)
    claimed_by: object | None = None
    is_full: bool = False
    queue_count: int = 0
    """Number of queues that it waits at."""

    @property
    def is_open(self) -> bool:
        """Whether a queue may decide for it."""
        return self.claimed_by is None and not self.future.done()

    def expire(self) -> None:
        """The wait timed out; once claimed, it completes with the decision instead."""
        if self.claimed_by is None:
            self.complete([])

    def complete(self, deliveries: list[Delivery]) -> bool:
        """False: the caller no longer waits."""
        if self.future.done():
            return False
        is_full = self.is_full and not deliveries
        self.future.set_result(PollResult(deliveries=deliveries, is_full=is_full))
        return True

    def leave(self, queue: object, error: QueueRefusedError) -> None:
        """One of its queues closed: it continues to wait at the others, if there are any."""
        self.queue_count -= 1
        if self.claimed_by is queue or (self.queue_count <= 0 and self.claimed_by is None):
            fail(self.future, error)
