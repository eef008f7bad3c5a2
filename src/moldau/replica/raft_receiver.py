"""Owns what a frame of a peer does: message by message to the cores of the groups that it names."""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

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
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import CorruptAppend, RaftEnvelope, decode_frame
from moldau.replica.raft_group import RaftGroup

_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of messages that wait for the next turn, by the size of their entries."""


class RaftReceiver:
    """Takes in what peers and their heartbeats say."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        now: Callable[[], int],
        steps: CoreStepper,
        effects: EffectExecutor,
        beats: HeartbeatExchange,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
        groups: Mapping[bytes, RaftGroup],
        append_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._now = now
        self._steps = steps
        self._effects = effects
        self._beats = beats
        self._flusher = flusher
        self._peers = peers
        self._groups = groups
        self._append_bytes_max = append_bytes_max
        self.unknown_total = 0
        """Messages for groups that are not here."""
        self._cuts = 0
        self._has_cut = False
        """In this turn of the loop. Each cut waits for the disk several times, and a former leader
        has to cut hundreds of logs: one per turn, so that heartbeats get in between."""
        self._held: dict[RaftGroup, list[tuple[Peer, RaftEnvelope]]] = {}
        """What has to wait for the next turn."""
        self._held_bytes = 0

    def take(self, sender: BrokerId, body: memoryview) -> None:
        """A frame of Raft messages. Raises PeerProtocolError."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        for parcel in decode_frame(body):
            self._give(peer, parcel)

    def _give(self, peer: Peer, parcel: RaftEnvelope, *, is_kept: bool = False) -> None:
        group = self._groups.get(parcel.group)
        if group is None or group.failure is not None:
            self.unknown_total += 1
        elif parcel.damage:
            report_to_leader(peer, group, parcel)
        elif self._has_cut and (group in self._held or may_truncate(group, parcel.message)):
            self._hold(peer, group, parcel if is_kept else parcel.kept())
        else:
            self._receive(peer, group, parcel)
            if self._effects.truncations_total != self._cuts:
                self._cuts = self._effects.truncations_total
                self._wait_for_next_turn()

    def _hold(self, peer: Peer, group: RaftGroup, parcel: RaftEnvelope) -> None:
        size = parcel.entries_bytes
        if self._held_bytes + size > _HELD_BYTES_MAX:
            # As if the network had lost it: it is sent again.
            return
        self._held_bytes += size
        self._held.setdefault(group, []).append((peer, parcel))

    def _wait_for_next_turn(self) -> None:
        if not self._has_cut:
            self._has_cut = True
            self._loop.call_soon(self._give_held)

    def _give_held(self) -> None:
        """In the next turn: up to the next message that cuts a log."""
        work = deque(one for kept in self._held.values() for one in kept)
        self._held, self._held_bytes, self._has_cut = {}, 0, False
        try:
            while work:
                peer, parcel = work.popleft()
                self._give(peer, parcel, is_kept=True)
        finally:
            # A defect in the owner of one group must not cost another its messages.
            for peer, parcel in work:
                if (group := self._groups.get(parcel.group)) is not None:
                    self._wait_for_next_turn()
                    self._hold(peer, group, parcel)

    def _receive(self, peer: Peer, group: RaftGroup, parcel: RaftEnvelope) -> None:
        parcel = split_fillers(parcel, group.log)
        message = parcel.message
        if isinstance(message, CorruptAppend):
            self._check_own(group, message)
            return
        if isinstance(message, VoteRequest):
            self.refresh(group)
        group.current_envelope = parcel
        try:
            self._steps.handle(group, e.Received(peer.id, message))
        finally:
            group.current_envelope = None
        if isinstance(message, (AppendResponse, RaftHeartbeatResponse)):
            self._beats.confirm(peer, group, message.epoch)

    def _check_own(self, group: RaftGroup, told: CorruptAppend) -> None:
        try:
            with self._flusher.fencing():
                check_own_entries(group, told, self._now(), self._append_bytes_max)
        except (CorruptionError, StorageError) as error:
            self._steps.fail(group, error)
            self._steps.tell(group)

    def refresh(self, group: RaftGroup) -> None:
        """Let the core know what the brokers' heartbeats said of its members."""
        if group.is_grown:
            self._steps.handle_grown(group)
        for last_contact_at, sign in self._beats.signs(group):
            for effect in group.core.step(last_contact_at, sign):
                self._effects.execute(group, effect)


def may_truncate(group: RaftGroup, message: Message | CorruptAppend) -> bool:
    """Whether it may take entries away that the log has."""
    if isinstance(message, AppendRequest):
        return bool(message.entries) and message.start < group.core.end
    return isinstance(message, InstallSnapshot)
