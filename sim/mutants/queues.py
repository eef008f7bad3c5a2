"""Mistakes of the queues: leases, acks and dead letters."""

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from moldau.leases import decide
from moldau.leases.config import QueueConfig
from moldau.leases.state import Leased, Open, QueueState, Waiting
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import RefusedError
from moldau.model.ids import TimestampMs
from moldau.queues import queue_partition
from moldau.queues.dead_letter_writer import DeadLetterWriter
from moldau.queues.ledgers import Ledgers
from sim.mutants import mutant
from sim.mutants.groups import LEADERS
from sim.mutants.raft import ELECTIONS, LATE

QUEUE: dict[str, Any] = {"queue_workers": 4, "queue_senders": 2}

_writing: set["asyncio.Task[None]"] = set()


async def _write_later(self: Ledgers, queue: Any, records: Any) -> None:
    task = asyncio.get_running_loop().create_task(_write(self, queue, list(records)))
    _writing.add(task)
    task.add_done_callback(_written)


def _written(task: "asyncio.Task[None]") -> None:
    _writing.discard(task)
    if not task.cancelled():
        task.exception()


_write = Ledgers.write


def _in_seconds(group: QueueGroup) -> QueueConfig:
    config = _config_of(group)
    longest = min(config.visibility_ms_default * 1000, config.visibility_ms_max)
    return replace(config, visibility_ms_default=longest)


def _for_milliseconds(group: QueueGroup) -> QueueConfig:
    config = _config_of(group)
    return replace(config, visibility_ms_default=config.visibility_ms_default // 1000)


_config_of = queue_partition.config_of


def _all_waiting(self: QueueState, now: TimestampMs) -> Iterator[Any]:
    yield from self.waiting_by_time()


def _uncounted(config: QueueConfig, lease: Leased, now: TimestampMs, last: str) -> Open:
    return Waiting(lease.attempts - 1, now)


async def _write_or_not(self: DeadLetterWriter, origin: Any, topic_name: str, letters: Any) -> Any:
    try:
        return await _write_letters(self, origin, topic_name, letters)
    except RefusedError:
        return {letter.record.offset for letter in letters}


_write_letters = DeadLetterWriter.write


MUTANTS = (
    mutant(
        "AnswersAcksEarly",
        "queues",
        "an ack is answered while it is being written",
        LEADERS,
        (Ledgers, "write", _write_later),
        **QUEUE,
    ),
    mutant(
        "LeasesInSeconds",
        "queues",
        "a lease lasts so many seconds, not milliseconds",
        ELECTIONS,
        (queue_partition, "config_of", _in_seconds),
        **QUEUE,
    ),
    mutant(
        "LeasesTooShort",
        "queues",
        "a lease lasts so many milliseconds as it should last seconds",
        LATE,
        (queue_partition, "config_of", _for_milliseconds),
        **QUEUE,
    ),
    mutant(
        "GivesEarly",
        "queues",
        "what is for later is given as soon as somebody asks",
        ELECTIONS,
        (QueueState, "due", _all_waiting),
        **QUEUE,
    ),
    mutant(
        "CountsNoAttempts",
        "queues",
        "a lease that ended by itself was no attempt",
        ELECTIONS,
        (decide, "_redeliver", _uncounted),
        **QUEUE,
    ),
    mutant(
        "DropsUnwrittenDeadLetters",
        "queues",
        "a dead letter that could not be written is forgotten",
        LEADERS,
        (DeadLetterWriter, "write", _write_or_not),
        **QUEUE,
    ),
)
