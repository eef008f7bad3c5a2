"""Messages of groups survive the way between brokers, and hostile bytes are refused as such."""

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.log.interface import ControlKind, LogStart
from moldau.model.errors import PeerProtocolError
from moldau.model.ids import BrokerId, Epoch, LogId, Offset, PartitionIndex, RaftIndex, TopicId
from moldau.raft.membership import Members, encode_members
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    InstallSnapshot,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau.replica.peer_codec import (
    METADATA_GROUP,
    BatchRun,
    ControlPart,
    CorruptAppend,
    GroupKey,
    RaftEnvelope,
    decode_frame,
    encode_append,
    encode_batches_head,
    encode_control,
    encode_message,
    encode_snapshot,
)
from moldau.replica.peer_heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from moldau.testing.logs import make_batch

epochs = st.integers(-1, 2**31 - 1).map(Epoch)
indexes = st.integers(0, 2**62).map(RaftIndex)
rounds = st.integers(0, 2**62)
logs = st.integers(0, 2**62).map(LogId)
keys = st.builds(
    GroupKey,
    st.binary(min_size=16, max_size=16).map(TopicId),
    st.integers(0, 2**31 - 1).map(PartitionIndex),
)
members = st.sets(st.integers(0, 1000), min_size=1, max_size=7).map(
    lambda ids: Members(tuple(sorted(BrokerId(broker) for broker in ids)))
)
small = st.one_of(
    st.builds(
        AppendResponse, epochs, st.booleans(), indexes, indexes, indexes, epochs, log_id=logs
    ),
    st.builds(VoteRequest, epochs, indexes, epochs, st.booleans(), st.booleans(), voter_log=logs),
    st.builds(VoteResponse, epochs, st.booleans(), st.booleans()),
    st.builds(RaftHeartbeat, epochs, indexes, rounds),
    st.builds(RaftHeartbeatResponse, epochs, rounds, logs),
    st.builds(TimeoutNow, epochs),
)


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[InstallSnapshot, LogStart, bytes]:
    offset, count = draw(st.integers(0, 2**40)), draw(st.integers(0, 2**20))
    voters = draw(st.one_of(st.just(b""), members.map(encode_members)))
    message = InstallSnapshot(
        draw(epochs), RaftIndex(offset + count), draw(epochs), draw(members)
    )  # fmt: skip
    start = LogStart(Offset(offset), count, draw(epochs), voters)
    return message, start, draw(st.binary(max_size=200))


@st.composite
def appends(draw: st.DrawFn) -> tuple[AppendRequest, bytes]:
    """An Append with its encoded entries: batches and control entries as they come in a log."""
    offset = draw(st.integers(0, 1000))
    index = start = offset + draw(st.integers(0, 10))
    epoch = draw(st.integers(0, 5))
    data = b""
    for _ in range(draw(st.integers(0, 5))):
        epoch += draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["noop", "members", "batches"]))
        if kind == "noop":
            data += encode_control(ControlKind.NOOP, Epoch(epoch), b"")
            index += 1
        elif kind == "members":
            payload = encode_members(draw(members))
            data += encode_control(ControlKind.MEMBERSHIP, Epoch(epoch), payload)
            index += 1
        else:
            run = b""
            for _ in range(draw(st.integers(1, 3))):
                count = draw(st.integers(1, 4))
                run += make_batch(offset, count=count, epoch=epoch, value=draw(st.binary()))
                offset += count
                index += count
            data += encode_batches_head(len(run)) + run
    message = AppendRequest(
        Epoch(epoch + draw(st.integers(0, 3))), RaftIndex(start), draw(epochs), (), draw(indexes)
    )
    return message, data


def encoded(key: GroupKey, message: AppendRequest, entries: bytes) -> bytes:
    head = encode_append(
        key.wire, message.epoch, message.start, message.prev_epoch, message.commit, len(entries)
    )
    return head + entries


def decode(data: bytes) -> list[RaftEnvelope]:
    return list(decode_frame(memoryview(data)))


def damage_of(message: AppendRequest, entries: bytes) -> str:
    """Why entries are left out. What comes before and after them in the frame is not."""
    ping = encode_message(METADATA_GROUP.wire, RaftHeartbeat(Epoch(1), RaftIndex(2), 3))
    before, parcel, after = decode(ping + encoded(METADATA_GROUP, message, entries) + ping)
    assert before.message == after.message == RaftHeartbeat(Epoch(1), RaftIndex(2), 3)
    assert (parcel.message, parcel.parts) == (message, ())
    return parcel.corruption


@given(st.lists(st.tuples(keys, small), max_size=8))
def test_small_messages_of_many_groups_survive_in_one_frame(
    sent: list[tuple[GroupKey, Message]],
) -> None:
    frame = b"".join(encode_message(key.wire, message) for key, message in sent)
    assert [(p.group, p.message) for p in decode(frame)] == [(k.wire, m) for k, m in sent]


@given(keys, snapshots())
def test_snapshots_survive(key: GroupKey, sent: tuple[InstallSnapshot, LogStart, bytes]) -> None:
    (parcel,) = decode(encode_snapshot(key.wire, *sent))
    assert (parcel.group, parcel.message, parcel.start, parcel.payload) == (key.wire, *sent)


@given(keys, appends(), small)
def test_appends_survive_with_their_entries_and_what_follows_them(
    key: GroupKey, sent: tuple[AppendRequest, bytes], after: Message
) -> None:
    message, entries = sent
    frame = encoded(key, message, entries) + encode_message(key.wire, after)
    parcel, last = decode(frame)
    assert last.message == after
    assert isinstance(parcel.message, AppendRequest)
    assert parcel.message._replace(entries=()) == message
    again = b""
    index = message.start
    for part in parcel.parts:
        assert part.start == index
        if isinstance(part, BatchRun):
            again += encode_batches_head(len(part.data)) + bytes(part.data)
            index = RaftIndex(index + sum(h.last_offset_delta + 1 for h in part.headers))
        else:
            assert isinstance(part, ControlPart)
            again += encode_control(part.kind, part.epoch, part.payload)
            index = RaftIndex(index + 1)
    assert again == entries
    assert [entry.start for entry in parcel.message.entries][:1] in ([], [message.start])
    for entry, following in zip(parcel.message.entries, parcel.message.entries[1:], strict=False):
        assert entry.end == following.start
    if parcel.message.entries:
        assert parcel.message.entries[-1].end == index


@given(keys, appends(), snapshots(), small, st.data())
def test_a_frame_that_is_cut_anywhere_is_refused_or_ends_between_two_messages(
    key: GroupKey,
    append: tuple[AppendRequest, bytes],
    snapshot: tuple[InstallSnapshot, LogStart, bytes],
    message: Message,
    data: st.DataObject,
) -> None:
    pieces = [
        encoded(key, *append),
        encode_snapshot(key.wire, *snapshot),
        encode_message(key.wire, message),
    ]
    frame = b"".join(pieces)
    ends = [sum(len(piece) for piece in pieces[:count]) for count in range(4)]
    cut = data.draw(st.integers(0, len(frame)))
    if cut in ends:
        assert len(decode(frame[:cut])) == ends.index(cut)
    else:
        with pytest.raises(PeerProtocolError):
            decode(frame[:cut])


@given(st.binary(max_size=200), st.integers(0, 255))
def test_arbitrary_bytes_are_refused_and_never_crash(data: bytes, kind: int) -> None:
    frame = METADATA_GROUP.wire + bytes([kind]) + data
    try:
        for parcel in decode(frame):
            assert parcel.message.epoch >= -1
    except PeerProtocolError:
        pass


@given(st.data())
def test_a_flipped_bit_inside_a_batch_is_noticed(data: st.DataObject) -> None:
    batch = bytearray(make_batch(0, value=b"some value"))
    at = data.draw(st.integers(21, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    message = AppendRequest(Epoch(9), RaftIndex(0), Epoch(0), (), RaftIndex(0))
    entries = encode_batches_head(len(batch)) + bytes(batch)
    assert re.search("checksum|batch", damage_of(message, entries))


def test_entries_of_a_later_epoch_than_their_leaders_are_refused() -> None:
    batch = make_batch(0, epoch=7)
    message = AppendRequest(Epoch(6), RaftIndex(0), Epoch(0), (), RaftIndex(0))
    assert "epoch 7" in damage_of(message, encode_batches_head(len(batch)) + batch)


def test_entries_whose_epoch_falls_are_refused() -> None:
    entries = encode_control(ControlKind.NOOP, Epoch(4), b"")
    entries += encode_control(ControlKind.NOOP, Epoch(3), b"")
    message = AppendRequest(Epoch(6), RaftIndex(0), Epoch(0), (), RaftIndex(0))
    assert "epoch 3 after epoch 4" in damage_of(message, entries)


def test_batches_whose_offsets_leave_a_gap_are_refused() -> None:
    run = make_batch(0) + make_batch(5)
    message = AppendRequest(Epoch(6), RaftIndex(0), Epoch(0), (), RaftIndex(0))
    assert "expected offset 1, got 5" in damage_of(message, encode_batches_head(len(run)) + run)


def test_a_follower_can_say_that_entries_are_damaged() -> None:
    told = CorruptAppend(Epoch(3), RaftIndex(1 << 40))
    (parcel,) = decode(encode_message(METADATA_GROUP.wire, told))
    assert (parcel.group, parcel.message) == (METADATA_GROUP.wire, told)
    with pytest.raises(PeerProtocolError):
        decode(encode_message(METADATA_GROUP.wire, told._replace(start=RaftIndex(-1))))


def test_members_that_are_none_are_refused() -> None:
    message = AppendRequest(Epoch(6), RaftIndex(0), Epoch(0), (), RaftIndex(0))
    for payload in (b"", b"\xff", encode_members(Members(())), b"\x92\x92\x01\x01\x90"):
        entries = encode_control(ControlKind.MEMBERSHIP, Epoch(1), payload)
        assert damage_of(message, entries)


listed = st.lists(st.tuples(st.binary(min_size=20, max_size=20), epochs), max_size=5).map(tuple)
numbers = st.integers(0, 2**64 - 1)
heartbeats = st.builds(
    Heartbeat, numbers, numbers, numbers, numbers, numbers, numbers, st.none() | listed,
    st.lists(st.tuples(st.integers(0, 2**32 - 1), indexes), max_size=5).map(tuple), listed,
)  # fmt: skip


@given(heartbeats)
def test_heartbeats_survive(beat: Heartbeat) -> None:
    assert decode_heartbeat(memoryview(encode_heartbeat(beat))) == beat


@given(heartbeats, st.data())
def test_a_heartbeat_that_is_cut_or_too_long_is_refused(
    beat: Heartbeat, data: st.DataObject
) -> None:
    frame = encode_heartbeat(beat)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for bad in (frame[:cut], frame + b"\0"):
        with pytest.raises(PeerProtocolError):
            decode_heartbeat(memoryview(bad))


def test_a_message_names_its_group_by_topic_id_and_partition() -> None:
    key = GroupKey(TopicId(bytes(range(16))), PartitionIndex(7))
    assert key.wire == bytes(range(16)) + struct.pack(">i", 7)
    assert METADATA_GROUP.wire == bytes(15) + b"\x01" + bytes(4)
