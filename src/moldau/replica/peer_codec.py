"""Owns how the messages of Raft groups look between brokers, several of any groups in one frame.

Each message begins with its group (topic id and partition) and its type. The entries of an Append
follow it as they stand in the log: runs of record batches, and control entries between them. They
are not described a second time: the receiver reads the batches' own headers and checks their sums.
Entries that are not what a leader may hold are no breach of the protocol: the leader's disk may be
damaged, in that group alone, and it is told so. All integers are big endian.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from moldau.log.interface import ControlKind, LogStart
from moldau.model.errors import CorruptionError, PeerProtocolError
from moldau.model.ids import Epoch, Offset, PartitionIndex, RaftIndex, TopicId
from moldau.raft.membership import Members, decode_members, encode_members
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryInfo,
    InstallSnapshot,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau.records.batch import BatchFormatError, BatchHeader, crc_matches, read_header

_new_entry = tuple.__new__
"""Without the keyword arguments of a NamedTuple's own: one for every batch that is replicated."""
_KEY: Final = struct.Struct(">16si")
KEY_BYTES: Final = _KEY.size


class GroupKey(NamedTuple):
    """Names one Raft group in the cluster. A topic made anew is another group."""

    topic_id: TopicId
    partition: PartitionIndex

    @property
    def wire(self) -> bytes:
        return _KEY.pack(self.topic_id, self.partition)

    @property
    def name(self) -> str:
        """In the vote journal."""
        return f"{self.topic_id.hex()}-{self.partition}"


METADATA_GROUP: Final = GroupKey(TopicId(bytes(15) + b"\x01"), PartitionIndex(0))


class BatchRun(NamedTuple):
    """Record batches that follow each other, the first at `start`."""

    start: RaftIndex
    headers: list[BatchHeader]
    data: memoryview


class ControlPart(NamedTuple):
    """One control entry."""

    start: RaftIndex
    epoch: Epoch
    kind: ControlKind
    payload: bytes


Part = BatchRun | ControlPart


class CorruptAppend(NamedTuple):
    """A follower's word that the entries which it was sent from `start` on are damaged."""

    epoch: Epoch
    start: RaftIndex


class RaftEnvelope(NamedTuple):
    """One message with what travels along with it. Valid as long as the frame."""

    group: bytes
    message: Message | CorruptAppend
    parts: tuple[Part, ...] = ()
    """The entries of an Append."""
    start: LogStart | None = None
    """Of a Snapshot: where the log begins then."""
    payload: bytes = b""
    """Of a Snapshot: what the state machine needs there."""
    damage: str = ""
    """Of an Append: why its entries were left out."""

    @property
    def entries_bytes(self) -> int:
        """Of the batches that it brings."""
        return sum(len(part.data) for part in self.parts if isinstance(part, BatchRun))

    def kept(self) -> "RaftEnvelope":
        """The same for longer than the frame: with memory of its own."""
        return self._replace(
            parts=tuple(
                part._replace(data=memoryview(bytes(part.data)))
                if isinstance(part, BatchRun)
                else part
                for part in self.parts
            )
        )


_APPEND, _ANSWER, _VOTE, _VOTED, _PING, _PONG, _SNAPSHOT, _TIMEOUT, _DAMAGE = range(1, 10)
_HEAD: Final = struct.Struct(">20sB")
_APPEND_BODY: Final = struct.Struct(">iqiqI")
_ANSWER_BODY: Final = struct.Struct(">i?qqqiq")
_VOTE_BODY: Final = struct.Struct(">iqi??q")
_VOTED_BODY: Final = struct.Struct(">i??")
_PING_BODY: Final = struct.Struct(">iqq")
_PONG_BODY: Final = struct.Struct(">iqq")
_TIMEOUT_BODY: Final = struct.Struct(">i")
_DAMAGE_BODY: Final = struct.Struct(">iq")
_SNAPSHOT_BODY: Final = struct.Struct(">iqiqqiHHI")
_BATCHES: Final = struct.Struct(">BI")
_CONTROL: Final = struct.Struct(">BBiH")
_IS_BATCHES, _IS_CONTROL = 0, 1
_EPOCH_MIN: Final = -1
_CONTROL_KINDS: Final = frozenset(ControlKind)


# ---- encoding


def encode_message(group: bytes, message: Message) -> bytes:
    """Any message but those that bring something along."""
    match message:
        case AppendResponse():
            return _HEAD.pack(group, _ANSWER) + _ANSWER_BODY.pack(*message)
        case RaftHeartbeat():
            return _HEAD.pack(group, _PING) + _PING_BODY.pack(*message)
        case RaftHeartbeatResponse():
            return _HEAD.pack(group, _PONG) + _PONG_BODY.pack(*message)
        case VoteRequest():
            return _HEAD.pack(group, _VOTE) + _VOTE_BODY.pack(*message)
        case VoteResponse():
            return _HEAD.pack(group, _VOTED) + _VOTED_BODY.pack(*message)
        case TimeoutNow():
            return _HEAD.pack(group, _TIMEOUT) + _TIMEOUT_BODY.pack(*message)
        case AppendRequest() | InstallSnapshot():
            raise ValueError(f"{type(message).__name__} is not sent alone")


def encode_corrupt_append(group: bytes, told: CorruptAppend) -> bytes:
    return _HEAD.pack(group, _DAMAGE) + _DAMAGE_BODY.pack(*told)


def encode_append(
    group: bytes,
    epoch: Epoch,
    start: RaftIndex,
    prev_epoch: Epoch,
    commit: RaftIndex,
    entries_bytes: int,
) -> bytes:
    """An Append up to its entries, which the caller adds: that many bytes of parts."""
    return _HEAD.pack(group, _APPEND) + _APPEND_BODY.pack(
        epoch, start, prev_epoch, commit, entries_bytes
    )


def encode_batches_head(size: int) -> bytes:
    """What stands before a run of batches of that size."""
    return _BATCHES.pack(_IS_BATCHES, size)


def encode_control(kind: ControlKind, epoch: Epoch, payload: bytes) -> bytes:
    return _CONTROL.pack(_IS_CONTROL, kind, epoch, len(payload)) + payload


def encode_snapshot(
    group: bytes, message: InstallSnapshot, start: LogStart, payload: bytes
) -> bytes:
    members = encode_members(message.members)
    head = _SNAPSHOT_BODY.pack(
        message.epoch,
        message.start,
        message.last_epoch,
        start.offset,
        start.control_count,
        start.epoch,
        len(members),
        len(start.voters),
        len(payload),
    )
    return b"".join((_HEAD.pack(group, _SNAPSHOT), head, members, start.voters, payload))


# ---- decoding


def decode_frame(body: memoryview) -> Iterator[RaftEnvelope]:
    """The messages of a frame, one after another. Raises PeerProtocolError at the first bad one."""
    position = 0
    while position < len(body):
        try:
            parcel, position = _decode(body, position)
        except struct.error:
            raise PeerProtocolError(f"a message at {position} ends early") from None
        yield parcel


def _decode(body: memoryview, position: int) -> tuple[RaftEnvelope, int]:
    group, kind = _HEAD.unpack_from(body, position)
    position += _HEAD.size
    message: Message | CorruptAppend
    if kind == _APPEND:
        return _decode_append(group, body, position)
    if kind == _ANSWER:
        message = AppendResponse(*_ANSWER_BODY.unpack_from(body, position))
        _check(
            message.epoch,
            message.hint_epoch,
            message.asked,
            message.matched,
            message.flushed,
            message.log_id,
        )
        position += _ANSWER_BODY.size
    elif kind == _PING:
        message = RaftHeartbeat(*_PING_BODY.unpack_from(body, position))
        _check(message.epoch, 0, message.commit)
        position += _PING_BODY.size
    elif kind == _PONG:
        message = RaftHeartbeatResponse(*_PONG_BODY.unpack_from(body, position))
        _check(message.epoch, 0, message.log_id)
        position += _PONG_BODY.size
    elif kind == _VOTE:
        message = VoteRequest(*_VOTE_BODY.unpack_from(body, position))
        _check(message.epoch, message.last_epoch, message.end, message.voter_log)
        position += _VOTE_BODY.size
    elif kind == _VOTED:
        message = VoteResponse(*_VOTED_BODY.unpack_from(body, position))
        _check(message.epoch, 0)
        position += _VOTED_BODY.size
    elif kind == _TIMEOUT:
        message = TimeoutNow(*_TIMEOUT_BODY.unpack_from(body, position))
        _check(message.epoch, 0)
        position += _TIMEOUT_BODY.size
    elif kind == _DAMAGE:
        message = CorruptAppend(*_DAMAGE_BODY.unpack_from(body, position))
        _check(message.epoch, 0, message.start)
        position += _DAMAGE_BODY.size
    elif kind == _SNAPSHOT:
        return _decode_snapshot(group, body, position)
    else:
        raise PeerProtocolError(f"a message of unknown type {kind}")
    return RaftEnvelope(group, message), position


def _check(epoch: int, other_epoch: int, *indexes: int) -> None:
    if epoch < _EPOCH_MIN or other_epoch < _EPOCH_MIN or (indexes and min(indexes) < 0):
        raise PeerProtocolError(f"epochs {epoch}, {other_epoch}, indexes {indexes}")


def _decode_append(group: bytes, body: memoryview, position: int) -> tuple[RaftEnvelope, int]:
    epoch, start, prev_epoch, commit, size = _APPEND_BODY.unpack_from(body, position)
    _check(epoch, prev_epoch, start, commit)
    position += _APPEND_BODY.size
    end = position + size
    if end > len(body):
        raise PeerProtocolError(f"an Append of {size} bytes where {len(body) - position} are left")
    entries: list[EntryInfo] = []
    try:
        parts = _decode_entries(body, position, end, start, entries)
        _check_epochs(entries, epoch)
    except (PeerProtocolError, struct.error) as error:
        message = AppendRequest(epoch, start, prev_epoch, (), commit)
        return RaftEnvelope(group, message, damage=str(error)), end
    message = AppendRequest(epoch, start, prev_epoch, tuple(entries), commit)
    return RaftEnvelope(group, message, tuple(parts)), end


def _decode_entries(
    body: memoryview, position: int, end: int, index: RaftIndex, entries: list[EntryInfo]
) -> list[Part]:
    """The entries of an Append; adds what the core must know of them to `entries`.

    Raises PeerProtocolError, struct.error.
    """
    parts: list[Part] = []
    while position < end:
        if body[position] == _IS_BATCHES:
            _, run_bytes = _BATCHES.unpack_from(body, position)
            position += _BATCHES.size
            if not 0 < run_bytes <= end - position:
                raise PeerProtocolError(f"{run_bytes} bytes of batches")
            run = _decode_run(body[position : position + run_bytes], index, entries)
            parts.append(run)
            position += run_bytes
        elif body[position] == _IS_CONTROL:
            _, kind, entry_epoch, payload_bytes = _CONTROL.unpack_from(body, position)
            position += _CONTROL.size
            if payload_bytes > end - position:
                raise PeerProtocolError(f"a control entry of {payload_bytes} bytes")
            payload = bytes(body[position : position + payload_bytes])
            parts.append(_control_part(index, entry_epoch, kind, payload, entries))
            position += payload_bytes
        else:
            raise PeerProtocolError(f"entries of unknown type {body[position]}")
        index = entries[-1].end
    return parts


def _decode_run(data: memoryview, index: RaftIndex, entries: list[EntryInfo]) -> BatchRun:
    """Batches with their sums checked; adds what the core must know of them to `entries`."""
    start = index
    headers: list[BatchHeader] = []
    position = 0
    size = len(data)
    next_offset = 0
    while position < size:
        try:
            header = read_header(data, position)
        except BatchFormatError as error:
            raise PeerProtocolError(f"no batch: {error}") from None
        batch_bytes, base_offset = header.size, header.base_offset
        if batch_bytes > size - position:
            raise PeerProtocolError(f"a batch of {batch_bytes} bytes is cut")
        if not crc_matches(data, position, batch_bytes, header.crc):
            raise PeerProtocolError(f"the batch at offset {base_offset} fails its checksum")
        if base_offset != next_offset and headers:
            raise PeerProtocolError(f"offset {base_offset} after {next_offset - 1}")
        count = header.last_offset_delta + 1
        next_offset = base_offset + count
        end = RaftIndex(index + count)
        entries.append(_new_entry(EntryInfo, (index, end, header.leader_epoch, None)))
        headers.append(header)
        index = end
        position += batch_bytes
    return BatchRun(start, headers, data)


def _control_part(
    index: RaftIndex, epoch: Epoch, kind: int, payload: bytes, entries: list[EntryInfo]
) -> ControlPart:
    members: Members | None = None
    if kind == ControlKind.MEMBERSHIP:
        members = _read_members(payload)
    elif kind not in _CONTROL_KINDS:
        raise PeerProtocolError(f"a control entry of unknown kind {kind}")
    entries.append(EntryInfo(index, RaftIndex(index + 1), epoch, members))
    return ControlPart(index, epoch, ControlKind(kind), payload)


def _check_epochs(entries: list[EntryInfo], epoch: Epoch) -> None:
    """Epochs never fall along a log, and no leader holds entries of a later one."""
    last = 0
    for entry in entries:
        if not last <= entry.epoch <= epoch:
            raise PeerProtocolError(f"an entry of epoch {entry.epoch} after {last}, from {epoch}")
        last = entry.epoch


def _decode_snapshot(group: bytes, body: memoryview, position: int) -> tuple[RaftEnvelope, int]:
    (
        epoch,
        start,
        last_epoch,
        offset,
        control_count,
        start_epoch,
        members_bytes,
        voters_bytes,
        payload_bytes,
    ) = _SNAPSHOT_BODY.unpack_from(body, position)
    _check(epoch, last_epoch, start, offset, control_count)
    _check(start_epoch, 0)
    if offset + control_count != start:
        raise PeerProtocolError(f"a snapshot at {start} for a log from {offset}+{control_count}")
    position += _SNAPSHOT_BODY.size
    end = position + members_bytes + voters_bytes + payload_bytes
    if end > len(body):
        raise PeerProtocolError("a snapshot that ends early")
    members = _read_members(bytes(body[position : position + members_bytes]))
    position += members_bytes
    voters = bytes(body[position : position + voters_bytes])
    if voters:
        _read_members(voters)
    place = LogStart(Offset(offset), control_count, Epoch(start_epoch), voters)
    message = InstallSnapshot(epoch, start, last_epoch, members)
    payload = bytes(body[position + voters_bytes : end])
    return RaftEnvelope(group, message, start=place, payload=payload), end


def _read_members(payload: bytes) -> Members:
    try:
        members = decode_members(payload)
    except CorruptionError as error:
        raise PeerProtocolError(str(error)) from None
    everyone = members.everyone
    if not members.voters or len(set(everyone)) != len(everyone):
        raise PeerProtocolError(f"members {members}")
    return members
