"""Sends and receives heartbeats: one per peer and interval for all Raft groups together.

An extra heartbeat is sent early when followers should learn of a commit soon. The state per peer is
in peer_heartbeat.py; a core receives it only before a decision that depends on it.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Mapping

from moldau.model.ids import NO_EPOCH, BrokerId, Epoch
from moldau.net.peers.frames import FrameKind
from moldau.raft import events as e
from moldau.raft.events import Event, Role
from moldau.replica.peer_heartbeat import decode_heartbeat, encode_heartbeat
from moldau.replica.peer_send_queue import Peer
from moldau.replica.raft_group import RaftGroup


class HeartbeatExchange:
    """Heartbeats with all peers."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        now: Callable[[], int],
        interval_ms: int,
        peers: Mapping[BrokerId, Peer],
        groups: Mapping[bytes, RaftGroup],
        handle_all: Callable[[deque[tuple[RaftGroup, Event]]], None],
    ) -> None:
        """`handle_all` steps the groups' cores; `now` counts milliseconds as they do."""
        self._loop = loop
        self._now = now
        self._interval_seconds = interval_ms / 1000
        self._peers = peers
        self._groups = groups
        self._handle_all = handle_all
        self._timer: TimerHandle | None = None
        self.is_due = False
        """Send one at the end of this loop turn, ahead of the interval."""

    def start(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._on_time)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ---- sending

    def _on_time(self) -> None:
        self._timer = self._loop.call_later(self._interval_seconds, self._on_time)
        for peer in list(self._peers.values()):
            if not peer.link.is_connected:
                continue
            due = e.HeartbeatDue(peer.id)
            self._handle_all(deque((group, due) for group in peer.heartbeat.unconfirmed))
            self._send(peer)

    def send_due(self) -> None:
        """Send the early heartbeat that was requested in this loop turn, if any."""
        if self.is_due:
            self.is_due = False
            for peer in self._peers.values():
                if peer.link.is_connected:
                    self._send(peer)

    def _send(self, peer: Peer) -> None:
        heartbeat = encode_heartbeat(peer.heartbeat.compose())
        if not peer.link.send(FrameKind.HEARTBEAT, [heartbeat]):
            peer.heartbeat.not_sent()

    # ---- receiving

    def receive(self, sender: BrokerId, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        peer = self._peers.get(sender)
        heartbeat = decode_heartbeat(body)
        if peer is None:
            return
        now = self._now()
        commits = peer.heartbeat.take(heartbeat, now, self._groups)
        if heartbeat.listed is not None:
            for group in peer.heartbeat.listed:
                self._check_following(peer, group)
        peer.heartbeat.take_acknowledgement(heartbeat, now, self._groups)
        self._handle_all(
            deque((group, e.LeaderAlive(sender, epoch, commit)) for group, epoch, commit in commits)
        )

    def _check_following(self, peer: Peer, group: RaftGroup) -> None:
        core = group.core
        is_following = group.is_running and core.leader == peer.id
        peer.heartbeat.check(group, core.epoch if is_following else NO_EPOCH)

    def alive(self, within_ms: int) -> set[BrokerId]:
        since = self._now() - within_ms
        return {
            broker
            for broker, peer in self._peers.items()
            if peer.heartbeat.last_contact_at >= since
        }

    # ---- per group

    def refresh(self, group: RaftGroup) -> None:
        """Tell the core of contacts with the group's members that it does not know yet."""
        core = group.core
        epoch, peers = core.epoch, self._peers
        if core.role is Role.LEADER:
            for broker, progress in core.progress.items():
                peer = peers.get(broker)
                if peer is None:
                    continue
                acknowledged_at = peer.heartbeat.acknowledged_at(group, epoch)
                if acknowledged_at > progress.last_contact_at:
                    core.heard_from(broker, acknowledged_at)
            return
        peer = peers.get(core.leader)
        if peer is not None:
            heard_at = peer.heartbeat.leader_heard_at(group, epoch)
            if heard_at > core.last_contact_at:
                # The commit index was handled when the heartbeat arrived.
                core.heard_from(core.leader, heard_at)

    def track(self, group: RaftGroup) -> None:
        """Update the followers that receive this group's heartbeats after a membership change."""
        core, old = group.core, group.tracked
        is_same_epoch = group.tracked_epoch == core.epoch
        group.tracked, group.tracked_epoch = core.progress, core.epoch
        for broker in old:
            peer = self._peers.get(broker)
            if peer is not None and broker not in core.progress:
                peer.heartbeat.leave(group)
                peer.forget(group)
        for broker in core.progress:
            peer = self._peers.get(broker)
            if peer is not None and not (is_same_epoch and broker in old):
                peer.heartbeat.lead(group)

    def confirm(self, peer: Peer, group: RaftGroup, epoch: Epoch) -> None:
        """The peer responded as a follower in that epoch."""
        if group in peer.heartbeat.unconfirmed:
            core = group.core
            if core.role is Role.LEADER and core.epoch == epoch:
                peer.heartbeat.confirm(group, epoch)
