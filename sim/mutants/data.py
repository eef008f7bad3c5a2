"""Bugs between protocol servers and replicas: offsets, fetches, acks."""

from typing import Any

from moldau.data import offsets
from moldau.data.fetch import FetchService, PartitionFetch, PartitionFetchResult
from moldau.data.offsets import FoundOffset
from moldau.model.errors import ErrorCode
from moldau.replica.replica import Replica
from sim.mutants import mutant
from sim.mutants.raft import DIVERGENCE, ELECTIONS


def _find_end(replica: Replica, timestamp: int, *rest: Any) -> FoundOffset:
    found = _find(replica, timestamp, *rest)
    return found._replace(offset=replica.log.end_offset) if timestamp == offsets.LATEST else found


_find = offsets._find


def _read_to_the_end(
    self: FetchService, request: PartitionFetch, left: int, is_first: bool
) -> PartitionFetchResult:
    hosted = self._partitions.get(request.topic or "", request.partition)
    if hosted is None:
        return _read_one(self, request, left, is_first)
    replica = hosted.replica
    watermark, replica.high_watermark = replica.high_watermark, replica.log.end_offset
    try:
        return _read_one(self, request, left, is_first)
    finally:
        replica.high_watermark = watermark


_read_one = FetchService._read_one


def _answer_well(self: Replica, code: ErrorCode) -> None:
    _fail_waiters(self, ErrorCode.NONE)


_fail_waiters = Replica._fail_waiters


MUTANTS = (
    mutant(
        "ListsTheUncommitted",
        "data",
        "the end that is returned is that of the leader's log",
        DIVERGENCE,
        (offsets, "_find", _find_end),
        producers=4,
    ),
    mutant(
        "FetchesTheUncommitted",
        "data",
        "a fetch is given what is in the leader's log",
        DIVERGENCE,
        (FetchService, "_read_one", _read_to_the_end),
    ),
    mutant(
        "AnswersWhenDeposed",
        "data",
        "a request that waits for a commit when a leader is deposed succeeds",
        ELECTIONS,
        (Replica, "_fail_waiters", _answer_well),
    ),
)
