"""Writes of one group: one after another, and a defect in one does not hold up the next."""

import struct

import pytest

from moldau.groups.config import GroupConfig
from moldau.groups.records import GroupRecord, GroupsRecord, OffsetRecord
from moldau.groups.results import CommittedOffset
from moldau.groups.runtime import Runtime
from moldau.groups.weights import GroupMemory
from moldau.groups.write import Write
from moldau.model.coordinator_events import Persist
from moldau.model.errors import ErrorCode
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicPartition


def offset_record(offset: int) -> OffsetRecord:
    return OffsetRecord(
        group_id="g",
        partition=TopicPartition("t", PartitionIndex(0)),
        value=CommittedOffset(
            offset=Offset(offset),
            leader_epoch=Epoch(-1),
            metadata="",
            commit_timestamp=TimestampMs(0),
            expire_timestamp=None,
        ),
    )


class Note(Write):
    """A write that notes what becomes of it."""

    merges = "note"

    def __init__(self, record: GroupsRecord | None) -> None:
        self._record = record
        self.outcome: ErrorCode | None = None

    def decide(self, now: float) -> list[GroupsRecord]:
        if self._record is None:
            raise ZeroDivisionError
        return [self._record]

    def committed(self, now: float) -> None:
        self.outcome = ErrorCode.NONE

    def failed(self, now: float, error: ErrorCode) -> None:
        self.outcome = error


def runtime() -> Runtime:
    return Runtime(GroupConfig(), lambda: TimestampMs(0), GroupMemory())


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (None, ZeroDivisionError),
        # Nothing like it can be stored: the format has 64 bits.
        (offset_record(1 << 70), struct.error),
    ],
)
def test_an_internal_error_in_a_write_is_reported_and_the_group_continues(
    broken: GroupsRecord | None, error: type[Exception]
) -> None:
    shared = runtime()
    group = shared.group("g")
    under_way, merged, bad = Note(offset_record(1)), Note(offset_record(2)), Note(broken)
    for write in (under_way, merged, bad):
        shared.submit(0.0, group, write)
    (token,) = shared.tokens()
    with pytest.raises(error):
        shared.persisted(0.0, token)
    assert under_way.outcome is ErrorCode.NONE
    assert merged.outcome is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bad.outcome is ErrorCode.UNKNOWN_SERVER_ERROR
    shared.take_effects()
    after = Note(offset_record(3))
    shared.submit(0.0, group, after)
    (persist,) = shared.take_effects()
    assert isinstance(persist, Persist)
    shared.persisted(0.0, persist.token)
    assert after.outcome is ErrorCode.NONE
    assert group.offsets[TopicPartition("t", PartitionIndex(0))].offset == 3


def test_commits_that_wait_are_written_together_and_other_writes_alone() -> None:
    shared = runtime()
    group = shared.group("g")
    gone = Note(GroupRecord(group_id="g", value=None))
    gone.merges = ""
    writes = [Note(offset_record(1)), Note(offset_record(2)), Note(offset_record(3)), gone]
    for write in writes:
        shared.submit(0.0, group, write)
    sizes = []
    while shared.tokens():
        (persist,) = shared.take_effects()
        assert isinstance(persist, Persist)
        sizes.append(len(persist.records))
        shared.persisted(0.0, persist.token)
    assert sizes == [1, 2, 1]
    assert all(write.outcome is ErrorCode.NONE for write in writes)
