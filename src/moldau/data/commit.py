"""Owns the broker's own writes: hand something to a replica and wait for its commit."""

import asyncio

from moldau.model.errors import DiskFullError, ErrorCode
from moldau.model.ids import Offset
from moldau.records.batch import read_header
from moldau.replica.replica import Replica
from moldau.replica.verification_guards import VerificationGuard


async def commit_batch(
    replica: Replica, batch: bytes, guard: VerificationGuard | None = None
) -> ErrorCode:
    """Append one batch that the broker itself built; returns when it is committed.

    `guard`: see Replica.propose. Raises RefusedError.
    """
    data = bytearray(batch)
    try:
        proposal = replica.propose(data, [read_header(data)], guard=guard)
    except DiskFullError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    done = _Done()
    replica.when_committed(proposal.end_offset, done)
    return await done.future


async def trim_replica(replica: Replica, offset: Offset) -> ErrorCode:
    """Let a partition begin at `offset` on every broker; returns when that is committed."""
    done = _Done()
    try:
        replica.trim(offset, done)
    except DiskFullError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return await done.future


class _Done:
    """A callback that can be awaited, and outlives whoever awaits it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def __call__(self, code: ErrorCode) -> None:
        if not self.future.done():
            self.future.set_result(code)
