"""Owns the broker's own writes: append a batch to a replica and wait for its commit."""

import asyncio

from moldau.model.errors import DiskFullError, ErrorCode
from moldau.records.batch import read_header
from moldau.replica.replica import Replica


async def commit_batch(replica: Replica, batch: bytes) -> ErrorCode:
    """Append one batch that the broker itself built; returns when it is committed."""
    data = bytearray(batch)
    try:
        proposal = replica.propose(data, [read_header(data)])
    except DiskFullError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def committed(code: ErrorCode) -> None:
        if not done.done():
            done.set_result(code)

    replica.when_committed(proposal.end_offset, committed)
    return await done
