"""The lag of followers, in records; and which replicas are compacted, or were."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_log import MemoryLog

from moldau.api.local_replicas import LocalReplicas
from moldau.log.interface import ControlKind, LogConfig
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.batch import read_header, stamp
from moldau.records.record import Record, build_batch


def log_with_control_entries() -> MemoryLog:
    """Raft indexes: 0 no-op, 1 and 2 records, 3 membership, 4 a record."""
    log = MemoryLog(LogConfig())
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    for number in range(3):
        if number == 2:
            log.append_control(Epoch(1), ControlKind.MEMBERSHIP, b"")
        batch = bytearray(build_batch([Record(Offset(0), TimestampMs(0), None, b"v", [])]))
        stamp(batch, 0, Offset(number), Epoch(1))
        log.append(batch, [read_header(batch)])
    return log


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [(0, {0: 3, 1: 3, 2: 2, 3: 1, 4: 1, 5: 0}), (2, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 0})],
)
def test_lag_counts_records_and_no_control_entries(deleted, expected):
    log = log_with_control_entries()
    log.delete_before(Offset(deleted))
    assert (log.start_offset, log.end_offset, log.end_index) == (deleted, 3, 5)
    progress = {match: SimpleNamespace(match=match) for match in expected}
    group = SimpleNamespace(core=SimpleNamespace(progress=progress))
    hosted = SimpleNamespace(replica=SimpleNamespace(log=log, group=group))
    (replica,) = LocalReplicas(cast(Any, [hosted]))
    assert replica.follower_lag() == expected


def test_a_replica_that_was_compacted_is_so_until_those_offsets_are_deleted():
    log = SimpleNamespace(compacted_end=0, start_offset=0)
    hosted = SimpleNamespace(replica=SimpleNamespace(log=log), is_compacted=True)
    (replica,) = LocalReplicas(cast(Any, [hosted]))
    assert replica.is_compacted
    hosted.is_compacted = False
    assert not replica.is_compacted
    log.compacted_end = 5
    assert replica.is_compacted
    log.start_offset = 5
    assert not replica.is_compacted
