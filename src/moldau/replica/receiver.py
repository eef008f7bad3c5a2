"""Owns what a frame of a peer does: message by message to the cores of the groups that it names."""

from collections.abc import Callable, Mapping

from moldau.model.errors import CorruptionError, StorageError
from moldau.model.ids import BrokerId
from moldau.raft import events as e
from moldau.raft.messages import AppendAnswered, Pong, VoteAsked
from moldau.replica.beats import Beats
from moldau.replica.damage import check_own, tell_leader
from moldau.replica.effects import Effects
from moldau.replica.fillers import split_for
from moldau.replica.flusher import Flusher
from moldau.replica.group import Group
from moldau.replica.peer import Peer
from moldau.replica.peer_codec import DamageTold, Parcel, decode_frame
from moldau.replica.steps import Steps


class Receiver:
    """Takes in what peers and their heartbeats say."""

    def __init__(
        self,
        *,
        now: Callable[[], int],
        steps: Steps,
        effects: Effects,
        beats: Beats,
        flusher: Flusher,
        peers: Mapping[BrokerId, Peer],
        groups: Mapping[bytes, Group],
        append_bytes_max: int,
    ) -> None:
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

    def take(self, sender: BrokerId, body: memoryview) -> None:
        """A frame of Raft messages. Raises PeerProtocolError."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        for parcel in decode_frame(body):
            group = self._groups.get(parcel.group)
            if group is None or group.failure is not None:
                self.unknown_total += 1
            elif parcel.damage:
                tell_leader(peer, group, parcel)
            else:
                self._receive(peer, group, parcel)

    def _receive(self, peer: Peer, group: Group, parcel: Parcel) -> None:
        parcel = split_for(parcel, group.log)
        message = parcel.message
        if isinstance(message, DamageTold):
            self._check_own(group, message)
            return
        if isinstance(message, VoteAsked):
            self.refresh(group)
        group.at_hand = parcel
        try:
            self._steps.handle(group, e.Received(peer.id, message))
        finally:
            group.at_hand = None
        if isinstance(message, (AppendAnswered, Pong)):
            self._beats.confirm(peer, group, message.epoch)

    def _check_own(self, group: Group, told: DamageTold) -> None:
        try:
            with self._flusher.fencing():
                check_own(group, told, self._now(), self._append_bytes_max)
        except (CorruptionError, StorageError) as error:
            self._steps.fail(group, error)
            self._steps.tell(group)

    def refresh(self, group: Group) -> None:
        """Let the core know what the brokers' heartbeats said of its members."""
        if group.is_grown:
            self._steps.handle_grown(group)
        for heard_at, sign in self._beats.signs(group):
            for effect in group.core.step(heard_at, sign):
                self._effects.execute(group, effect)
