"""Owns what waits in the mailbox of a queue: commands, and questions that change nothing."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from moldau.groups.queue.answers import Answer
from moldau.groups.queue.machine import QueueMachine
from moldau.model.ids import TimestampMs
from moldau.queues.serving import Make

R = TypeVar("R")
See = Callable[[QueueMachine, TimestampMs], R]


class Told(NamedTuple):
    """A command that waits to be decided. Without a future nobody wants to hear of it."""

    make: Make
    future: asyncio.Future[Answer] | None
    token_count: int = 0


class Look(NamedTuple):
    """A question that changes nothing, answered between two rounds: what it sees is committed."""

    see: See[Any]
    future: asyncio.Future[Any]
