"""Executes the effects of a Raft core: on the log, the peers' queues and the group's owner."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, assert_never

from moldau.log.interface import ControlKind
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, Offset, RaftIndex
from moldau.net.peers.frames import FRAME_BYTES_MAX
from moldau.raft import events as e
from moldau.raft.errors import RaftError
from moldau.raft.events import Effect, Event, RareEffect, Role
from moldau.raft.membership import NO_BROKER, encode_members
from moldau.raft.messages import InstallSnapshot
from moldau.records.batch import BatchFormatError, BatchHeader
from moldau.records.control import EndMarker, end_markers
from moldau.replica.flusher import Flusher
from moldau.replica.group_events import EventKind, describe_effect, describe_members, with_event
from moldau.replica.peer_codec import (
    BatchRun,
    ControlPart,
    Part,
    RaftEnvelope,
    encode_append,
    encode_message,
    encode_snapshot,
)
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_counts import RaftCounts
from moldau.replica.raft_group import RaftGroup
from moldau.replica.vote_writer import VoteWriter

log = logging.getLogger(__name__)

_SNAPSHOT_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024


class EffectExecutor:
    """Executes effects. Notifications to the owner wait until the step is over."""

    def __init__(
        self,
        *,
        peers: dict[BrokerId, Peer],
        votes: VoteWriter,
        flusher: Flusher,
        monotonic: Callable[[], float],
    ) -> None:
        self._peers = peers
        self._votes = votes
        self._flusher = flusher
        self._monotonic = monotonic
        self.counts: Final = RaftCounts()
        self.truncations_total = 0
        """Truncations and resets of logs; each needs several flushes."""

    def execute(self, group: RaftGroup, effect: Effect) -> None:
        """Raises RaftError, CorruptionError, StorageError."""
        # The four most frequent first, without pattern matching, which is slower.
        if isinstance(effect, e.SendAppend):
            peer = self._peers.get(effect.peer)
            if peer is not None:
                peer.send_later(group, effect)
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

    def _execute_rare(self, group: RaftGroup, effect: RareEffect) -> None:  # noqa: C901 - one case each
        if (event := describe_effect(effect, group.core.me, group.core.election.cause)) is not None:
            self._note(group, *event)
        match effect:
            case e.SendSnapshot(broker):
                peer = self._peers.get(broker)
                if peer is not None:
                    peer.send_later(group, effect)
            case e.PersistVote(epoch, voted_for):
                self._votes.request(group.name, (epoch, voted_for))
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
                        group.notifications.append(partial(future.set_result, offset))
            case e.ReadFailed(read_ids):
                for read_id in read_ids:
                    future = group.reads.pop(read_id)
                    if not future.done():
                        refusal = RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                        group.notifications.append(partial(future.set_exception, refusal))
            case e.VoterReplaced(voter):
                group.notifications.append(partial(group.owner.on_voter_replaced, group, voter))
            case e.TransferEnded():
                group.notifications.append(partial(group.end_transfer, NO_BROKER))
            case _:
                assert_never(effect)

    def _note(self, group: RaftGroup, kind: EventKind, text: str) -> None:
        group.events = with_event(group.events, self._monotonic(), kind, text)

    def _note_members(self, group: RaftGroup, payload: bytes) -> None:
        if text := describe_members(payload):
            self._note(group, EventKind.MEMBERS, text)

    # ---- the log

    def flush_later(self, group: RaftGroup, size: int) -> None:
        """The log has grown by `size` bytes."""
        if group.flushes_always:
            self._flusher.request(group.flush_handle, size)
        else:
            # Counted anyway: the flusher must recognize a large flush later.
            group.flush_handle.unflushed_bytes += size

    def append_control(
        self, group: RaftGroup, epoch: Epoch, kind: ControlKind, payload: bytes
    ) -> None:
        """Append a control entry; it is flushed soon, whatever the flush policy for records."""
        group.log.append_control(epoch, kind, payload)
        self._flusher.request(group.flush_handle, len(payload))

    def _store(self, group: RaftGroup, start: RaftIndex) -> None:
        envelope = group.current_envelope
        if envelope is None:
            raise RaftError("the core stores entries without a received Append")
        self.counts.appends_received += 1
        end = group.log.end_offset
        try:
            size, headers = group.view.store(envelope.parts, start)
        except DiskFullError:
            # The part that was written stays in the log, and is not sent again.
            self._notify_stored(group, envelope, _between(envelope, end, group.log.end_offset))
            raise
        finally:
            # A part may be in the log even if the disk was too full for the rest.
            self.flush_later(group, 0)
            for part in envelope.parts:
                if isinstance(part, ControlPart):
                    if part.kind is ControlKind.MEMBERSHIP:
                        self._note_members(group, part.payload)
                    group.has_controls = True
                    self._flusher.request(group.flush_handle, 0)
        group.flush_handle.unflushed_bytes += size
        self._notify_stored(group, envelope, headers)

    def _notify_stored(
        self, group: RaftGroup, envelope: RaftEnvelope, headers: list[BatchHeader]
    ) -> None:
        if headers:
            markers = _read_markers(envelope.parts)
            group.notifications.append(partial(group.owner.on_stored, group, headers, markers))

    def _truncate(self, group: RaftGroup, end: RaftIndex) -> None:
        self._unsend_files(group)
        self.truncations_total += 1
        group.view.truncate(end)
        group.notifications.append(partial(group.owner.on_truncated, group, group.log.end_offset))

    def _reset(self, group: RaftGroup) -> None:
        envelope = group.current_envelope
        if envelope is None or envelope.start is None:
            raise RaftError("the core resets the log without a received snapshot")
        self._unsend_files(group)
        self.truncations_total += 1
        self.counts.snapshots_received += 1
        group.view.reset(envelope.start, envelope.payload)
        group.notifications.append(
            partial(group.owner.on_reset, group, envelope.start.offset, envelope.payload)
        )

    def _unsend_files(self, group: RaftGroup) -> None:
        """Drop connections whose queues hold slices of its files, which are about to change."""
        for peer in self._peers.values():
            if group in peer.sliced and peer.link.has_files_queued:
                peer.link.reset("a log was truncated while parts of it were being sent")

    # ---- the owner

    def notify_commit(self, group: RaftGroup, end: RaftIndex) -> None:
        """Notify the owner, and the followers of this broker."""
        if end <= group.commit_notified:
            return
        offset = self.note_commit(group, end)
        if group.core.role is Role.LEADER:
            for broker in group.core.progress:
                peer = self._peers.get(broker)
                if peer is not None:
                    peer.heartbeat.note_commit(group)
        group.notifications.append(partial(group.owner.on_commit, group, offset))

    def note_commit(self, group: RaftGroup, end: RaftIndex) -> Offset:
        """Record the commit; returns it as an offset for the owner."""
        group.commit_notified = end
        proposed = group.proposed
        if proposed and proposed[0][0] <= end:
            self._note_committed(group, end)
        return group.log.offset_of(end)

    def _note_committed(self, group: RaftGroup, end: RaftIndex) -> None:
        """Proposals of one loop turn have one time: they are counted together."""
        proposed, size = group.proposed, 0
        now, durations = self._monotonic(), self.counts.commit_seconds
        first_at, count = proposed[0][2], 0
        while proposed and proposed[0][0] <= end:
            _, proposed_bytes, appended_at = proposed.popleft()
            size += proposed_bytes
            if appended_at != first_at:
                durations.add(now - first_at, count)
                first_at, count = appended_at, 0
            count += 1
        durations.add(now - first_at, count)
        group.proposed_bytes -= size

    def notify_controls(self, group: RaftGroup) -> None:
        """Notify the owner of its control entries that are committed and flushed: it may delete
        records because of them."""
        core, view = group.core, group.view
        end = min(core.commit, core.flushed)
        if end <= group.controls_notified:
            return
        for index, control in view.owner_controls(group.controls_notified, end):
            group.notifications.append(
                partial(group.owner.on_control, group, control.kind, control.payload, index)
            )
        group.controls_notified = end
        group.has_controls = bool(view.owner_controls(end, core.end))

    def _change_role(self, group: RaftGroup, effect: e.RoleChanged) -> None:
        group.proposed.clear()
        group.proposed_bytes = 0
        self._count_role(group, effect)
        for peer in self._peers.values():
            is_following = effect.role is Role.FOLLOWER and effect.leader == peer.id
            peer.heartbeat.check(group, effect.epoch if is_following else NO_EPOCH)
            if effect.role is not Role.LEADER:
                peer.forget(group)
        if effect.leader != NO_BROKER:
            group.notifications.append(partial(group.end_transfer, effect.leader))
        group.notifications.append(
            partial(group.owner.on_role, group, effect.role, effect.epoch, effect.leader)
        )

    def _count_role(self, group: RaftGroup, effect: e.RoleChanged) -> None:
        counts = self.counts
        if effect.epoch != group.counted_epoch:
            group.counted_epoch = effect.epoch
            counts.epoch_changes += 1
        if effect.role is Role.CANDIDATE:
            counts.elections[group.core.election.cause] += 1
        elif effect.role is Role.LEADER:
            counts.won[group.core.election.cause] += 1
            group.led_since = group.core.now

    # ---- bulk

    def send_bulk(
        self, peer: Peer, group: RaftGroup, effect: e.SendAppend | e.SendSnapshot
    ) -> tuple[Event | None, int]:
        """Send what waited for room; returns the next event for the core, and the size.

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
            # Retention deleted the entries before they could be sent.
            return e.PeerDisconnected(peer.id), 0
        end, size = effect.start, 0
        head_of = partial(
            encode_append, group.wire, effect.epoch, effect.start, effect.prev_epoch, core.commit
        )
        if effect.bytes_max:
            reading = view.read(effect.start, effect.bytes_max)
            end, size = reading.end, reading.size
            self.counts.appends_sent += 1
            head = head_of(size)
            peer.post_bulk([head, *reading.chunks], len(head) + size)
            if reading.has_files:
                peer.sliced.add(group)
        else:
            head = head_of(0)
            peer.post_bulk([head], len(head))
        peer.heartbeat.commit_sent(group)
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
            log.warning(
                "group %s: cannot send a snapshot now, will retry: %s",
                group.name,
                error,
                extra=events.SNAPSHOT_DELAYED(group=group.name),
            )
            return e.PeerDisconnected(peer.id), 0
        data = encode_snapshot(group.wire, message, start, payload)
        if len(data) > _SNAPSHOT_BYTES_MAX:
            log.error(
                "group %s: snapshot of %d bytes exceeds the limit of %d; broker %d cannot catch up",
                group.name,
                len(data),
                _SNAPSHOT_BYTES_MAX,
                peer.id,
                extra=events.SNAPSHOT_TOO_LARGE(group=group.name, peer=peer.id),
            )
            return e.PeerDisconnected(peer.id), 0
        self.counts.snapshots_sent += 1
        # In a frame of its own: the messages collected so far must fit as well.
        peer.flush()
        peer.post_bulk([data], len(data))
        return None, len(data)


def _between(envelope: RaftEnvelope, start: Offset, end: Offset) -> list[BatchHeader]:
    return [
        header
        for part in envelope.parts
        if isinstance(part, BatchRun)
        for header in part.headers
        if start <= header.base_offset < end
    ]


def _read_markers(parts: Sequence[Part]) -> dict[Offset, EndMarker]:
    """The transaction markers in received entries, by offset. Raises CorruptionError."""
    markers: dict[Offset, EndMarker] = {}
    for part in parts:
        if isinstance(part, BatchRun):
            try:
                markers |= end_markers(part.data, part.headers)
            except BatchFormatError as error:
                raise CorruptionError(str(error)) from None
    return markers
