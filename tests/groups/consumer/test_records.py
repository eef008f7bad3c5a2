"""The records of consumer groups are Kafka's, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.groups.consumer.records import (
    ClassicClient,
    ConsumerMember,
    CurrentAssignment,
    CurrentAssignmentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from moldau.groups.records import decode, encode
from moldau.model.errors import CorruptionError
from moldau.model.ids import TimestampMs, TopicId

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
maybe = st.none() | texts
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
assignments = st.dictionaries(
    st.binary(min_size=16, max_size=16).map(TopicId),
    st.frozensets(int32, min_size=1, max_size=5),
    max_size=3,
)
classic = st.builds(
    ClassicClient,
    session_timeout_ms=int32,
    protocols=st.lists(st.tuples(texts, st.binary(max_size=8)), min_size=1, max_size=3).map(tuple),
)
members = st.builds(
    ConsumerMember,
    instance_id=maybe,
    rack=maybe,
    client_id=texts,
    client_host=texts,
    topics=st.lists(texts, max_size=3).map(tuple),
    pattern=maybe,
    rebalance_timeout_ms=int32,
    assignor=maybe,
    session_timeout_ms=st.none() | int32,
    classic=st.none() | classic,
)
currents = st.builds(
    CurrentAssignment,
    epoch=int32,
    previous_epoch=int32,
    state=st.sampled_from(MemberState),
    assigned=assignments,
    revoking=assignments,
)
epochs = st.builds(GroupEpoch, epoch=int32, topics_hash=int64, empty_since=int64.map(TimestampMs))
records = st.one_of(
    st.builds(EpochRecord, group_id=texts, value=st.none() | epochs),
    st.builds(MemberRecord, group_id=texts, member_id=texts, value=st.none() | members),
    st.builds(TargetEpochRecord, group_id=texts, value=st.none() | int32),
    st.builds(
        TargetAssignmentRecord, group_id=texts, member_id=texts, value=st.none() | assignments
    ),
    st.builds(CurrentAssignmentRecord, group_id=texts, member_id=texts, value=st.none() | currents),
)


@given(records)
def test_every_record_round_trips(record):
    assert decode(*encode(record)) == record


@given(records, st.data())
def test_a_record_cut_before_its_tags_is_corruption(record, data):
    key, value = encode(record)
    with pytest.raises(CorruptionError):
        decode(key[: data.draw(st.integers(0, len(key) - 1))], value)
    if value:
        # The last byte says that there are no tags; only epochs and members may have some.
        with pytest.raises(CorruptionError):
            decode(key, value[: data.draw(st.integers(0, len(value) - 2))])


@given(st.integers(3, 8), st.binary(max_size=60))
def test_arbitrary_values_are_a_record_or_corruption(kind, value):
    try:
        decode(b"\x00" + bytes([kind]) + b"\x00\x01g\x00\x01m", b"\x00\x00" + value)
    except CorruptionError:
        return


TOPIC = TopicId(bytes(range(16)))


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            EpochRecord(group_id="g", value=GroupEpoch(epoch=7, topics_hash=258)),
            "0003 0001 67",
            "0000 00000007 01 00 08 0000000000000102",
        ),
        (
            MemberRecord(
                group_id="g",
                member_id="m",
                value=ConsumerMember(
                    rack="r",
                    client_id="c",
                    client_host="h",
                    topics=("t",),
                    rebalance_timeout_ms=5,
                    assignor="range",
                ),
            ),
            "0005 0001 67 0001 6d",
            "0000 00 0272 0263 0268 02 0274 00 00000005 06 72616e6765 00",
        ),
        (TargetEpochRecord(group_id="g", value=9), "0006 0001 67", "0000 00000009 00"),
        (
            TargetAssignmentRecord(group_id="g", member_id="m", value={TOPIC: frozenset({3, 1})}),
            "0007 0001 67 0001 6d",
            f"0000 02 {TOPIC.hex()} 03 00000001 00000003 00 00",
        ),
        (
            CurrentAssignmentRecord(
                group_id="g",
                member_id="m",
                value=CurrentAssignment(
                    epoch=2,
                    previous_epoch=1,
                    state=MemberState.UNREVOKED,
                    revoking={TOPIC: frozenset({4})},
                ),
            ),
            "0008 0001 67 0001 6d",
            f"0000 00000002 00000001 01 01 02 {TOPIC.hex()} 02 00000004 00 00",
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_records_have_kafkas_bytes(record, key, value):
    assert encode(record) == (bytes.fromhex(key), bytes.fromhex(value))


def test_fields_that_newer_versions_add_are_skipped():
    value = bytes.fromhex(f"0000 00000002 00000001 00 02 {TOPIC.hex()} 02 00000004")
    value += bytes.fromhex("01 00 05 02 00000009 01 00")
    record = decode(bytes.fromhex("0008 0001 67 0001 6d"), value)
    assert isinstance(record, CurrentAssignmentRecord)
    assert record.value is not None
    assert record.value.assigned == {TOPIC: frozenset({4})}
