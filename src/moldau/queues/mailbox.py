"""Owns what waits in the mailbox of a queue: commands, and questions that change nothing."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from moldau.groups.queue.results import CommandResult
from moldau.groups.queue.state_machine import QueueStateMachine
from moldau.model.ids import TimestampMs
from moldau.queues.round_decider import MakeCommand

R = TypeVar("R")
Query = Callable[[QueueStateMachine, TimestampMs], R]


class PendingCommand(NamedTuple):
    """A command that waits to be decided. Without a future nobody wants to hear of it."""

    make: MakeCommand
    future: asyncio.Future[CommandResult] | None
    token_count: int = 0


class PendingQuery(NamedTuple):
    """A question that changes nothing, answered between two rounds: what it sees is committed."""

    see: Query[Any]
    future: asyncio.Future[Any]
