"""The wire format of Raft messages between brokers; one frame holds messages of several groups.

Each message begins with its group (topic id and partition) and its type. The entries of an Append
follow as they are in the log: runs of record batches, with control entries between them. The
receiver reads the batch headers and verifies the checksums. Invalid entries are not a protocol
error: the leader's disk may be corrupt, in that group alone, and the follower reports it
(corruption_reports.py). All integers are big endian.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

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
"""Faster than the NamedTuple constructor: called for every replicated batch."""
_KEY: Final = struct.Struct(">16si")


class GroupKey(NamedTuple):
    """Identifies one Raft group in the cluster. A recreated topic has other groups."""

    topic_id: TopicId
    partition: PartitionIndex

    @property
    def wire(self) -> bytes:
        return _KEY.pack(self.topic_id, self.partition)

    @property
    def name(self) -> str:
        """The name in the vote journal and in logs."""
        return f"{self.topic_id.hex()}-{self.partition}"


METADATA_GROUP: Final = GroupKey(TopicId(bytes(15) + b"\x01"), PartitionIndex(0))


class BatchRun(NamedTuple):
    """Consecutive record batches, the first at `start`."""

    start: RaftIndex
    headers: list[BatchHeader]
    data: "memoryview"


class ControlPart(NamedTuple):
    """One control entry."""

    start: RaftIndex
    epoch: Epoch
    kind: ControlKind
    payload: bytes


Part = BatchRun | ControlPart


class CorruptAppend(NamedTuple):
    """A follower's report that the entries it received from `start` on are corrupt."""

    epoch: Epoch
    start: RaftIndex


class RaftEnvelope(NamedTuple):
    """One Raft message with its entries or snapshot. Valid as long as the frame."""

    group: bytes
    message: Message | CorruptAppend
    parts: tuple[Part, ...] = ()
    """The entries of an Append."""
    start: LogStart | None = None
    """Of a Snapshot: where the log begins after it."""
    payload: bytes = b""
    """Of a Snapshot: the state machine's state there."""
    corruption: str = ""
    """Of an Append: why its entries were rejected; empty if they are valid."""

    @property
    def entries_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts if isinstance(part, BatchRun))

    def kept(self) -> "RaftEnvelope":
        """A copy that outlives the frame."""
        return self._replace(
            parts=tuple(
                part._replace(data=memoryview(bytes(part.data)))
                if isinstance(part, BatchRun)
                else part
                for part in self.parts
            )
        )


_APPEND, _APPENDED, _VOTE, _VOTED, _PING, _PONG, _SNAPSHOT, _TIMEOUT, _CORRUPT = range(1, 10)
_HEAD: Final = struct.Struct(">20sB")
_APPEND_BODY: Final = struct.Struct(">iqiqI")
_SNAPSHOT_BODY: Final = struct.Struct(">iqiqqiHHI")
_BATCHES: Final = struct.Struct(">BI")
_CONTROL: Final = struct.Struct(">BBiH")
_IS_BATCHES, _IS_CONTROL = 0, 1
_EPOCH_MIN: Final = -1
_CONTROL_KINDS: Final = frozenset(ControlKind)


# ---- encoding


def encode_message(group: bytes, message: Message | CorruptAppend) -> bytes:
    """Encode any message but AppendRequest and InstallSnapshot, which carry data."""
    kind, body = _KINDS[type(message)]
    return _HEAD.pack(group, kind) + body.pack(*message)


def encode_append(
    group: bytes,
    epoch: Epoch,
    start: RaftIndex,
    prev_epoch: Epoch,
    commit: RaftIndex,
    entries_bytes: int,
) -> bytes:
    """The head of an Append; the caller adds its entries, `entries_bytes` in total."""
    return _HEAD.pack(group, _APPEND) + _APPEND_BODY.pack(
        epoch, start, prev_epoch, commit, entries_bytes
    )


def encode_batches_head(size: int) -> bytes:
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
    """The messages of a frame. Raises PeerProtocolError at the first invalid one."""
    position = 0
    while position < len(body):
        try:
            envelope, position = _decode(body, position)
        except struct.error:
            raise PeerProtocolError(f"truncated Raft message at byte {position}") from None
        yield envelope


def _decode(body: memoryview, position: int) -> tuple[RaftEnvelope, int]:
    group, kind = _HEAD.unpack_from(body, position)
    position += _HEAD.size
    if kind == _APPEND:
        return _decode_append(group, body, position)
    if kind == _SNAPSHOT:
        return _decode_snapshot(group, body, position)
    known = _PLAIN.get(kind)
    if known is None:
        raise PeerProtocolError(f"unknown Raft message type {kind}")
    message = known.type(*known.body.unpack_from(body, position))
    known.check(message)
    return RaftEnvelope(group, message), position + known.body.size


def _check(epoch: int, other_epoch: int, *indexes: int) -> None:
    if epoch < _EPOCH_MIN or other_epoch < _EPOCH_MIN or (indexes and min(indexes) < 0):
        raise PeerProtocolError(
            f"invalid epoch or index: epochs {epoch}, {other_epoch}, indexes {indexes}"
        )


class _Plain(NamedTuple):
    """How a message without data is encoded and checked."""

    type: Callable[..., Message | CorruptAppend]
    body: struct.Struct
    check: Callable[[Any], None]


_PLAIN: Final = {
    _APPENDED: _Plain(
        AppendResponse,
        struct.Struct(">i?qqqiq"),
        lambda m: _check(m.epoch, m.hint_epoch, m.rejected_start, m.matched, m.flushed, m.log_id),
    ),
    _VOTE: _Plain(
        VoteRequest,
        struct.Struct(">iqi??q"),
        lambda m: _check(m.epoch, m.last_epoch, m.end, m.voter_log),
    ),
    _VOTED: _Plain(VoteResponse, struct.Struct(">i??"), lambda m: _check(m.epoch, 0)),
    _PING: _Plain(RaftHeartbeat, struct.Struct(">iqq"), lambda m: _check(m.epoch, 0, m.commit)),
    _PONG: _Plain(
        RaftHeartbeatResponse, struct.Struct(">iqq"), lambda m: _check(m.epoch, 0, m.log_id)
    ),
    _TIMEOUT: _Plain(TimeoutNow, struct.Struct(">i"), lambda m: _check(m.epoch, 0)),
    _CORRUPT: _Plain(CorruptAppend, struct.Struct(">iq"), lambda m: _check(m.epoch, 0, m.start)),
}
_KINDS: Final = {plain.type: (kind, plain.body) for kind, plain in _PLAIN.items()}


def _decode_append(group: bytes, body: memoryview, position: int) -> tuple[RaftEnvelope, int]:
    epoch, start, prev_epoch, commit, size = _APPEND_BODY.unpack_from(body, position)
    _check(epoch, prev_epoch, start, commit)
    position += _APPEND_BODY.size
    end = position + size
    if end > len(body):
        raise PeerProtocolError(
            f"Append with {size} bytes of entries, but {len(body) - position} bytes are left"
        )
    entries: list[EntryInfo] = []
    try:
        parts = _decode_entries(body, position, end, start, entries)
        _check_epochs(entries, epoch)
    except (PeerProtocolError, struct.error) as error:
        message = AppendRequest(epoch, start, prev_epoch, (), commit)
        return RaftEnvelope(group, message, corruption=str(error)), end
    message = AppendRequest(epoch, start, prev_epoch, tuple(entries), commit)
    return RaftEnvelope(group, message, tuple(parts)), end


def _decode_entries(
    body: memoryview, position: int, end: int, index: RaftIndex, entries: list[EntryInfo]
) -> list[Part]:
    """Decode the entries of an Append; adds the core's view of them to `entries`.

    Raises PeerProtocolError, struct.error.
    """
    parts: list[Part] = []
    while position < end:
        if body[position] == _IS_BATCHES:
            _, run_bytes = _BATCHES.unpack_from(body, position)
            position += _BATCHES.size
            if not 0 < run_bytes <= end - position:
                raise PeerProtocolError(f"invalid size of a run of batches: {run_bytes} bytes")
            run = _decode_run(body[position : position + run_bytes], index, entries)
            parts.append(run)
            position += run_bytes
        elif body[position] == _IS_CONTROL:
            _, kind, entry_epoch, payload_bytes = _CONTROL.unpack_from(body, position)
            position += _CONTROL.size
            if payload_bytes > end - position:
                raise PeerProtocolError(f"truncated control entry of {payload_bytes} bytes")
            payload = bytes(body[position : position + payload_bytes])
            parts.append(_control_part(index, entry_epoch, kind, payload, entries))
            position += payload_bytes
        else:
            raise PeerProtocolError(f"unknown entry type {body[position]}")
        index = entries[-1].end
    return parts


def _decode_run(data: memoryview, index: RaftIndex, entries: list[EntryInfo]) -> BatchRun:
    """Decode batches, verifying checksums; adds the core's view of them to `entries`."""
    start = index
    headers: list[BatchHeader] = []
    position = 0
    size = len(data)
    next_offset = 0
    while position < size:
        try:
            header = read_header(data, position)
        except BatchFormatError as error:
            raise PeerProtocolError(f"invalid batch header: {error}") from None
        batch_bytes, base_offset = header.size, header.base_offset
        if batch_bytes > size - position:
            raise PeerProtocolError(f"truncated batch of {batch_bytes} bytes")
        if not crc_matches(data, position, batch_bytes, header.crc):
            raise PeerProtocolError(f"checksum mismatch in the batch at offset {base_offset}")
        if base_offset != next_offset and headers:
            raise PeerProtocolError(f"expected offset {next_offset}, got {base_offset}")
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
        raise PeerProtocolError(f"unknown control entry kind {kind}")
    entries.append(EntryInfo(index, RaftIndex(index + 1), epoch, members))
    return ControlPart(index, epoch, ControlKind(kind), payload)


def _check_epochs(entries: list[EntryInfo], epoch: Epoch) -> None:
    """Epochs never decrease along a log, and never exceed the leader's epoch."""
    last = 0
    for entry in entries:
        if not last <= entry.epoch <= epoch:
            raise PeerProtocolError(
                f"entry of epoch {entry.epoch} after epoch {last}, from the leader of epoch {epoch}"
            )
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
        raise PeerProtocolError(
            f"snapshot at index {start} for a log that begins at {offset}+{control_count}"
        )
    position += _SNAPSHOT_BODY.size
    end = position + members_bytes + voters_bytes + payload_bytes
    if end > len(body):
        raise PeerProtocolError("truncated snapshot")
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
        raise PeerProtocolError(f"invalid members: {members}")
    return members
