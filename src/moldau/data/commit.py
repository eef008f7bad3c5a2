"""Writes of the broker itself: append to a replica and wait for the commit."""

from functools import partial

from moldau.model.errors import DiskFullError, ErrorCode
from moldau.model.ids import Offset
from moldau.records.batch import read_header
from moldau.replica.raft_replica import RaftReplica, wait_for_code
from moldau.replica.replica import Replica


async def commit_batch(replica: RaftReplica, batch: bytes) -> ErrorCode:
    """Appends a batch of the broker itself; returns when it is committed. Raises RefusedError."""
    data = bytearray(batch)
    try:
        proposal = replica.propose(data, [read_header(data)])
    except DiskFullError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return await wait_for_code(proposal.when_committed)


async def trim_replica(replica: Replica, offset: Offset) -> ErrorCode:
    """Moves the start offset of a partition on all replicas; returns when that is committed."""
    try:
        return await wait_for_code(partial(replica.trim, offset))
    except DiskFullError:
        return ErrorCode.KAFKA_STORAGE_ERROR
