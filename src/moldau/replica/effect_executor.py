"""Owns what the effects of a core do: to the log, to the peers' queues, to the owner's ears."""

import logging
from functools import partial
from typing import Final, assert_never

from moldau.log.interface import ControlKind
from moldau.model.errors import DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, Offset, RaftIndex
from moldau.net.peers.frames import FRAME_BYTES_MAX
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.events import Effect, Event, RareEffect, Role
from moldau.raft.membership import NO_BROKER, encode_members
from moldau.raft.messages import InstallSnapshot
from moldau.records.batch import BatchHeader
from moldau.replica.flusher import Flusher
from moldau.replica.markers import read_markers
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import (
    BatchRun,
    ControlPart,
    RaftEnvelope,
    encode_append,
    encode_message,
    encode_snapshot,
)
from moldau.replica.raft_group import RaftGroup
from moldau.replica.vote_writer import VoteWriter

log = logging.getLogger(__name__)

_SNAPSHOT_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024


class EffectExecutor:
    """Carries out effects. What the owner hears of waits until the step is over."""

    def __init__(self, *, peers: dict[BrokerId, Peer], votes: VoteWriter, flusher: Flusher) -> None:
        self._peers = peers
        self._votes = votes
        self._flusher = flusher
        self.truncations_total = 0
        """Ends of logs taken away, each with several flushes of its own."""

    def execute(self, group: RaftGroup, effect: Effect) -> None:
        """Raises RaftError, CorruptionError, StorageError."""
        # The four of every entry first, without patterns: they cost as much as the rest.
        if isinstance(effect, e.SendAppend):
            peer = self._peers.get(effect.peer)
            if peer is not None:
                peer.ask(group, effect)
        elif isinstance(effect, e.Committed):
            self.notify_commit(group, effect.end)
        elif isinstance(effect, e.Send):
            peer = self._peers.get(effect.peer)
            if peer is not None:
                peer.post(encode_message(group.wire, effect.message))
        elif isinstance(effect, e.StoreEntries):
            self._store(group, effect.start)
        else:
            self._execute_rare(group, effect)

    def _execute_rare(self, group: RaftGroup, effect: RareEffect) -> None:
        match effect:
            case e.SendSnapshot(broker):
                peer = self._peers.get(broker)
                if peer is not None:
                    peer.ask(group, effect)
            case e.PersistVote(epoch, voted_for):
                self._votes.ask(group.name, (epoch, voted_for))
            case e.AppendNoop(epoch):
                self.append_control(group, epoch, ControlKind.NOOP, b"")
            case e.AppendMembership(epoch, members):
                self.append_control(group, epoch, ControlKind.MEMBERSHIP, encode_members(members))
            case e.Truncate(end):
                self._truncate(group, end)
            case e.ResetLog():
                self._reset(group)
            case e.RoleChanged():
                self._change_role(group, effect)
            case e.ReadReady(read_ids, end):
                offset = group.log.offset_of(end)
                for read_id in read_ids:
                    future = group.reads.pop(read_id)
                    if not future.done():
                        group.news.append(partial(future.set_result, offset))
            case e.ReadFailed(read_ids):
                for read_id in read_ids:
                    future = group.reads.pop(read_id)
                    if not future.done():
                        refusal = RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                        group.news.append(partial(future.set_exception, refusal))
            case e.VoterReplaced(voter):
                group.news.append(partial(group.owner.on_voter_replaced, group, voter))
            case e.TransferEnded():
                group.news.append(partial(group.end_transfer, NO_BROKER))
            case _:
                assert_never(effect)

    # ---- the log

    def flush_later(self, group: RaftGroup, size: int) -> None:
        """The log has grown by that much."""
        if group.flushes_always:
            self._flusher.request(group.flush_handle, size)
        else:
            # Counted all the same: the flusher must know a large flush when it comes.
            group.flush_handle.unflushed_bytes += size

    def append_control(
        self, group: RaftGroup, epoch: Epoch, kind: ControlKind, payload: bytes
    ) -> None:
        """Flushed soon, whatever the policy for records is."""
        group.log.append_control(epoch, kind, payload)
        self._flusher.request(group.flush_handle, len(payload))

    def _store(self, group: RaftGroup, start: RaftIndex) -> None:
        parcel = group.current_envelope
        if parcel is None:
            raise RaftError("entries are to be stored that nobody sent")
        end = group.log.end_offset
        try:
            size, headers = group.view.store(parcel.parts, start)
        except DiskFullError:
            # The part that went in stays in the log, and nobody sends it a second time.
            self._tell_stored(group, parcel, _between(parcel, end, group.log.end_offset))
            raise
        finally:
            # A part may be in the log even if the disk was full for the rest.
            self.flush_later(group, 0)
            for part in parcel.parts:
                if isinstance(part, ControlPart):
                    group.has_controls = True
                    self._flusher.request(group.flush_handle, 0)
        group.flush_handle.unflushed_bytes += size
        self._tell_stored(group, parcel, headers)

    def _tell_stored(
        self, group: RaftGroup, parcel: RaftEnvelope, headers: list[BatchHeader]
    ) -> None:
        if headers:
            markers = read_markers(parcel.parts)
            group.news.append(partial(group.owner.on_stored, group, headers, markers))

    def _truncate(self, group: RaftGroup, end: RaftIndex) -> None:
        self._unsend_files(group)
        self.truncations_total += 1
        group.view.truncate(end)
        group.news.append(partial(group.owner.on_truncated, group, group.log.end_offset))

    def _reset(self, group: RaftGroup) -> None:
        parcel = group.current_envelope
        if parcel is None or parcel.start is None:
            raise RaftError("a log is to be reset without a snapshot")
        self._unsend_files(group)
        self.truncations_total += 1
        group.view.reset(parcel.start, parcel.payload)
        group.news.append(partial(group.owner.on_reset, group, parcel.start.offset, parcel.payload))

    def _unsend_files(self, group: RaftGroup) -> None:
        """Bytes that still wait to be sent from its files are about to be others."""
        for peer in self._peers.values():
            if group in peer.sliced and peer.link.has_files_queued:
                peer.link.reset("a log was cut while parts of it were on their way")

    # ---- the owner

    def notify_commit(self, group: RaftGroup, end: RaftIndex) -> None:
        """To the owner, and to the members that this broker leads."""
        if end <= group.commit_notified:
            return
        offset = self.note_commit(group, end)
        if group.core.role is Role.LEADER:
            for broker in group.core.progress:
                peer = self._peers.get(broker)
                if peer is not None:
                    peer.beat.note_commit(group)
        group.news.append(partial(group.owner.on_commit, group, offset))

    def note_commit(self, group: RaftGroup, end: RaftIndex) -> Offset:
        """Returns the offset of which the owner is to hear."""
        group.commit_notified = end
        proposed = group.proposed
        while proposed and proposed[0][0] <= end:
            group.proposed_bytes -= proposed.popleft()[1]
        return group.log.offset_of(end)

    def notify_controls(self, group: RaftGroup) -> None:
        """Those of the owner that are committed and flushed by now: it may delete what they say."""
        core, view = group.core, group.view
        end = min(core.commit, core.flushed)
        if end <= group.controls_notified:
            return
        for index, control in view.owner_controls(group.controls_notified, end):
            group.news.append(
                partial(group.owner.on_control, group, control.kind, control.payload, index)
            )
        group.controls_notified = end
        group.has_controls = bool(view.owner_controls(end, core.end))

    def _change_role(self, group: RaftGroup, effect: e.RoleChanged) -> None:
        group.proposed.clear()
        group.proposed_bytes = 0
        for peer in self._peers.values():
            is_following = effect.role is Role.FOLLOWER and effect.leader == peer.id
            peer.beat.check(group, effect.epoch if is_following else NO_EPOCH)
            if effect.role is not Role.LEADER:
                peer.forget(group)
        if effect.leader != NO_BROKER:
            group.news.append(partial(group.end_transfer, effect.leader))
        group.news.append(
            partial(group.owner.on_role, group, effect.role, effect.epoch, effect.leader)
        )

    # ---- bulk

    def send_bulk(
        self, peer: Peer, group: RaftGroup, effect: e.SendAppend | e.SendSnapshot
    ) -> tuple[Event | None, int]:
        """Send what waited for room; returns what the core must hear, and the size.

        Raises CorruptionError.
        """
        core, view = group.core, group.view
        if not group.is_running or core.role is not Role.LEADER:
            return None, 0
        if isinstance(effect, e.SendSnapshot):
            return self._send_snapshot(peer, group, effect)
        if effect.epoch != core.epoch:
            return None, 0
        if effect.start < view.start_index:
            # Retention was faster: what was to be sent is gone.
            return e.PeerDisconnected(peer.id), 0
        end, size = effect.start, 0
        head_of = partial(
            encode_append, group.wire, effect.epoch, effect.start, effect.prev_epoch, core.commit
        )
        if effect.bytes_max:
            reading = view.read(effect.start, effect.bytes_max)
            end, size = reading.end, reading.size
            head = head_of(size)
            peer.post_bulk([head, *reading.chunks], len(head) + size)
            if reading.has_files:
                peer.sliced.add(group)
        else:
            head = head_of(0)
            peer.post_bulk([head], len(head))
        peer.beat.commit_sent(group)
        return e.AppendSent(peer.id, effect.epoch, end, size), size

    def _send_snapshot(
        self, peer: Peer, group: RaftGroup, effect: e.SendSnapshot
    ) -> tuple[Event | None, int]:
        message = effect.message
        start = group.view.snapshot_start()
        if not isinstance(message, InstallSnapshot) or message.epoch != group.core.epoch:
            return None, 0
        if start.offset + start.control_count != message.start:
            return e.PeerDisconnected(peer.id), 0
        try:
            payload = group.owner.snapshot(group, start.offset)
        except RefusedError as error:
            log.warning("%s: %s", group.name, error)
            return e.PeerDisconnected(peer.id), 0
        data = encode_snapshot(group.wire, message, start, payload)
        if len(data) > _SNAPSHOT_BYTES_MAX:
            log.error("%s: a snapshot of %d bytes is too large to be sent", group.name, len(data))
            return e.PeerDisconnected(peer.id), 0
        # In a frame of its own: what is gathered already must fit as well.
        peer.flush()
        peer.post_bulk([data], len(data))
        return None, len(data)


def _between(parcel: RaftEnvelope, start: Offset, end: Offset) -> list[BatchHeader]:
    """The batches of a message that are at these offsets."""
    return [
        header
        for part in parcel.parts
        if isinstance(part, BatchRun)
        for header in part.headers
        if start <= header.base_offset < end
    ]
