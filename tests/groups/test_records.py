import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.groups import records as module
from moldau.groups.records import (
    GroupRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    _decode_as_written,
    decode,
    encode,
)
from moldau.groups.results import CommittedOffset
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicPartition

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(max_size=30)
partitions = st.builds(TopicPartition, texts, int32.map(PartitionIndex))
offsets = st.builds(
    CommittedOffset,
    offset=int64.map(Offset),
    leader_epoch=int32.map(Epoch),
    metadata=texts,
    commit_timestamp=int64.map(TimestampMs),
) | st.builds(
    CommittedOffset,
    offset=int64.map(Offset),
    metadata=texts,
    commit_timestamp=int64.map(TimestampMs),
    expire_timestamp=st.integers(0, 2**63 - 1).map(TimestampMs),
)
members = st.builds(
    StoredMember,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=int32,
    session_timeout_ms=int32,
    subscription=blobs,
    assignment=blobs,
)
groups = st.builds(
    StoredGroup,
    protocol_type=texts,
    generation=int32,
    protocol_name=st.none() | texts,
    leader=st.none() | texts,
    state_timestamp=int64.map(TimestampMs),
    members=st.lists(members, max_size=3).map(tuple),
)
records = st.builds(
    OffsetRecord, group_id=texts, partition=partitions, value=st.none() | offsets
) | st.builds(GroupRecord, group_id=texts, value=st.none() | groups)


@given(records)
def test_every_record_round_trips(record):
    assert decode(*encode(record)) == record


@given(records, st.data())
def test_a_record_cut_anywhere_is_corruption(record, data):
    key, value = encode(record)
    cut = data.draw(st.integers(0, len(key) - 1))
    with pytest.raises(CorruptionError):
        decode(key[:cut], value)
    if value:
        with pytest.raises(CorruptionError):
            decode(key, value[: data.draw(st.integers(0, len(value) - 1))])


@given(st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_arbitrary_bytes_are_a_record_unknown_or_corruption(key, value):
    try:
        decode(key, value)
    except CorruptionError:
        return


@given(st.binary(max_size=80))
def test_arbitrary_values_of_a_group_are_bounded(value):
    try:
        decode(b"\x00\x02\x00\x01g", b"\x00\x03" + value)
    except CorruptionError:
        return


def test_an_offset_has_kafkas_bytes():
    record = OffsetRecord(
        group_id="g",
        partition=TopicPartition("top", PartitionIndex(7)),
        value=CommittedOffset(
            offset=Offset(258),
            leader_epoch=Epoch(3),
            metadata="me",
            commit_timestamp=TimestampMs(1_700_000_000_000),
        ),
    )
    key, value = encode(record)
    assert key == bytes.fromhex("0001 0001 67 0003 746f70 00000007")
    assert value == bytes.fromhex("0003 0000000000000102 00000003 0002 6d65 0000018bcfe56800")


def test_a_group_has_kafkas_bytes():
    member = StoredMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=2,
        session_timeout_ms=1,
        subscription=b"S",
        assignment=b"AA",
    )
    value = StoredGroup(
        protocol_type="consumer",
        generation=5,
        protocol_name="range",
        leader="m",
        state_timestamp=TimestampMs(9),
        members=(member,),
    )
    key, data = encode(GroupRecord(group_id="g", value=value))
    assert key == bytes.fromhex("0002 0001 67")
    assert data == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 0000000000000009 00000001"
        "0001 6d ffff 0001 63 0001 68 00000002 00000001 00000001 53 00000002 4141"
    )


def decode_offset(value: str) -> CommittedOffset:
    record = decode(bytes.fromhex("0001 0001 67 0001 74 00000000"), bytes.fromhex(value))
    assert isinstance(record, OffsetRecord)
    assert record.value is not None
    return record.value


def test_older_and_newer_offsets_are_read():
    version_0 = decode_offset("0000 0000000000000005 0001 61 0000000000000007")
    assert (version_0.offset, version_0.metadata, version_0.leader_epoch) == (5, "a", -1)
    version_1 = decode_offset("0001 0000000000000005 0001 61 0000000000000007 0000000000000008")
    assert (version_1.commit_timestamp, version_1.expire_timestamp) == (7, 8)
    version_2 = decode_offset("0002 0000000000000005 0001 61 0000000000000007")
    assert version_2.expire_timestamp is None
    # Flexible, with a tagged field (the topic's id) that is not known here.
    version_4 = decode_offset(
        "0004 0000000000000005 00000002 02 61 0000000000000007 01 00 10" + "ab" * 16
    )
    assert (version_4.offset, version_4.leader_epoch, version_4.metadata) == (5, 2, "a")


def test_older_and_newer_groups_are_read():
    key = bytes.fromhex("0002 0001 67")
    version_0 = decode(
        key,
        bytes.fromhex(
            "0000 0001 63 00000005 0001 72 0001 6d 00000001"
            "0001 6d 0001 63 0001 68 0000000a 00000001 53 00000001 41"
        ),
    )
    assert isinstance(version_0, GroupRecord)
    assert version_0.value is not None
    assert version_0.value.state_timestamp == -1
    assert version_0.value.members[0].rebalance_timeout_ms == 10
    version_4 = decode(
        key,
        bytes.fromhex(
            "0004 02 63 00000005 00 00 0000000000000009 02"
            "02 6d 02 69 02 63 02 68 00000002 00000001 02 53 02 41 01 05 01 ff 00"
        ),
    )
    assert isinstance(version_4, GroupRecord)
    assert version_4.value is not None
    assert version_4.value.protocol_name is None
    assert version_4.value.members[0].instance_id == "i"
    assert version_4.value.members[0].assignment == b"A"


def test_keys_of_other_kinds_are_skipped():
    assert decode(struct.pack(">h", 4) + b"whatever", b"x") is None
    assert decode(struct.pack(">h", -1), None) is None


def test_values_of_a_later_version_are_refused():
    with pytest.raises(CorruptionError, match="version 9"):
        decode_offset("0009")


@given(records, st.data())
def test_the_fast_way_to_read_offsets_reads_what_the_careful_one_reads(record, data):
    key, value = encode(record)
    cuts = st.integers(0, len(key)), st.integers(0, len(value or b""))
    key = key[: data.draw(cuts[0])] + data.draw(st.sampled_from([b"", b"\x00", b"\xff\xff"]))
    value = (value or b"")[: data.draw(cuts[1])] + data.draw(st.sampled_from([b"", b"\x00"]))
    fast = _decode_as_written(key, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_decode_as_written", lambda key, value: None)
        try:
            careful = decode(key, value)
        except CorruptionError:
            careful = None
    assert fast is None or fast == careful


def test_offsets_as_they_are_written_take_the_fast_way():
    record = OffsetRecord(
        group_id="gruppe-ü",
        partition=TopicPartition("t", PartitionIndex(3)),
        value=CommittedOffset(offset=Offset(5), metadata="m", commit_timestamp=TimestampMs(9)),
    )
    key, value = encode(record)
    assert value is not None
    assert _decode_as_written(key, value) == record
