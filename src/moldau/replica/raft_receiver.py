"""Receives frames of Raft messages from peers, and steps the addressed groups with them."""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping

from moldau.model.errors import CorruptionError, StorageError
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    InstallSnapshot,
    Message,
    RaftHeartbeatResponse,
    VoteRequest,
)
from moldau.replica.core_stepper import CoreStepper
from moldau.replica.corruption_reports import check_own_entries, report_to_leader
from moldau.replica.effect_executor import EffectExecutor
from moldau.replica.filler_batches import split_fillers
from moldau.replica.flusher import Flusher
from moldau.replica.heartbeats import HeartbeatExchange
from moldau.replica.peer_codec import CorruptAppend, RaftEnvelope, decode_frame
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup

_DEFERRED_BYTES_MAX = 16 * 1024 * 1024
"""Bound on deferred messages, by the size of their entries."""


class RaftReceiver:
    """Handles received messages, and refreshes cores with contacts from heartbeats."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        now: Callable[[], int],
        stepper: CoreStepper,
        effects: EffectExecutor,
        heartbeats: HeartbeatExchange,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
        groups: Mapping[bytes, RaftGroup],
        append_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._now = now
        self._stepper = stepper
        self._effects = effects
        self._heartbeats = heartbeats
        self._flusher = flusher
        self._peers = peers
        self._groups = groups
        self._append_bytes_max = append_bytes_max
        self.unknown_total = 0
        """Messages for groups that do not run here."""
        self._truncations = 0
        self._has_truncated = False
        """In this loop turn. A truncation waits for the disk several times, and a former leader
        may truncate hundreds of logs: one per turn, so that heartbeats are handled in between."""
        self._deferred: dict[RaftGroup, list[tuple[Peer, RaftEnvelope]]] = {}
        """Messages deferred to the next loop turn."""
        self._deferred_bytes = 0

    def take(self, sender: BrokerId, body: memoryview) -> None:
        """Handle a frame of Raft messages. Raises PeerProtocolError."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        for envelope in decode_frame(body):
            self._deliver(peer, envelope)

    def _deliver(self, peer: Peer, envelope: RaftEnvelope, *, is_kept: bool = False) -> None:
        group = self._groups.get(envelope.group)
        if group is None or group.failure is not None:
            self.unknown_total += 1
        elif envelope.corruption:
            report_to_leader(peer, group, envelope)
        elif self._has_truncated and (
            group in self._deferred or may_truncate(group, envelope.message)
        ):
            self._defer(peer, group, envelope if is_kept else envelope.kept())
        else:
            self._receive(peer, group, envelope)
            if self._effects.truncations_total != self._truncations:
                self._truncations = self._effects.truncations_total
                self._defer_to_next_turn()

    def _defer(self, peer: Peer, group: RaftGroup, envelope: RaftEnvelope) -> None:
        size = envelope.entries_bytes
        if self._deferred_bytes + size > _DEFERRED_BYTES_MAX:
            # Drop it as if the network had lost it: the peer sends it again.
            return
        self._deferred_bytes += size
        self._deferred.setdefault(group, []).append((peer, envelope))

    def _defer_to_next_turn(self) -> None:
        if not self._has_truncated:
            self._has_truncated = True
            self._loop.call_soon(self._deliver_deferred)

    def _deliver_deferred(self) -> None:
        """In the next turn: handle deferred messages up to the next truncation."""
        work = deque(one for kept in self._deferred.values() for one in kept)
        self._deferred, self._deferred_bytes, self._has_truncated = {}, 0, False
        try:
            while work:
                peer, envelope = work.popleft()
                self._deliver(peer, envelope, is_kept=True)
        finally:
            # An error in one group's callbacks must not lose the messages of others.
            for peer, envelope in work:
                if (group := self._groups.get(envelope.group)) is not None:
                    self._defer_to_next_turn()
                    self._defer(peer, group, envelope)

    def _receive(self, peer: Peer, group: RaftGroup, envelope: RaftEnvelope) -> None:
        envelope = split_fillers(envelope, group.log)
        message = envelope.message
        if isinstance(message, CorruptAppend):
            self._check_own(group, message)
            return
        if isinstance(message, VoteRequest):
            self.refresh(group)
        group.current_envelope = envelope
        try:
            self._stepper.handle(group, e.Received(peer.id, message))
        finally:
            group.current_envelope = None
        if isinstance(message, (AppendResponse, RaftHeartbeatResponse)):
            self._heartbeats.confirm(peer, group, message.epoch)

    def _check_own(self, group: RaftGroup, report: CorruptAppend) -> None:
        try:
            with self._flusher.fencing():
                check_own_entries(group, report, self._now(), self._append_bytes_max)
        except (CorruptionError, StorageError) as error:
            self._stepper.fail(group, error)
            self._stepper.notify(group)

    def refresh(self, group: RaftGroup) -> None:
        """Tell the core of contacts with its members, known from heartbeats."""
        if group.is_grown:
            self._stepper.handle_grown(group)
        self._heartbeats.refresh(group)


def may_truncate(group: RaftGroup, message: Message | CorruptAppend) -> bool:
    """Whether handling the message may remove entries from the log."""
    if isinstance(message, AppendRequest):
        return bool(message.entries) and message.start < group.core.end
    return isinstance(message, InstallSnapshot)
