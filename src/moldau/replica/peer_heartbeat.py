"""The heartbeat between two brokers: one small frame for all groups that they share.

A leader lists the groups that the peer has confirmed by responding in the leader's epoch. The list
has a version, and is sent only when it changed; after that a heartbeat names the version, and is a
heartbeat of every group in it. The peer acknowledges in its own next heartbeat: the last version
received, and the groups of it that it does not follow. Those leave the list, and are pinged one by
one until they respond again. New commit indexes are sent along.

A session number identifies the process: acknowledgements of an earlier process are ignored.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from moldau.model.errors import PeerProtocolError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, RaftIndex
from moldau.replica.raft_group import RaftGroup

NEVER: Final = -1 << 62
"""Earlier than any time, even after subtracting a timeout from a clock that just started."""
_HEAD: Final = struct.Struct(">QQQQQQ?III")
_LISTED: Final = struct.Struct(">20si")
_COMMIT: Final = struct.Struct(">Iq")


class Heartbeat(NamedTuple):
    """The fields of a heartbeat frame."""

    session: int
    number: int
    """Sequence number of the sender's heartbeats."""
    version: int
    """Of the sender's list."""
    heard_session: int
    heard_number: int
    """The last heartbeat received from the other side, 0 if none."""
    heard_version: int
    listed: tuple[tuple[bytes, Epoch], ...] | None
    """The list, if it changed: groups that the sender leads and the receiver confirmed."""
    commits: tuple[tuple[int, RaftIndex], ...]
    """Position in the list, and the commit index."""
    refused: tuple[tuple[bytes, Epoch], ...]
    """Groups of the receiver's list that the sender does not follow."""


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    listed = heartbeat.listed or ()
    head = _HEAD.pack(
        *heartbeat[:6],
        heartbeat.listed is not None,
        len(listed),
        len(heartbeat.commits),
        len(heartbeat.refused),
    )
    return b"".join(
        (
            head,
            *(_LISTED.pack(*entry) for entry in listed),
            *(_COMMIT.pack(*entry) for entry in heartbeat.commits),
            *(_LISTED.pack(*entry) for entry in heartbeat.refused),
        )
    )


def decode_heartbeat(body: memoryview) -> Heartbeat:
    """Raises PeerProtocolError."""
    if len(body) < _HEAD.size:
        raise PeerProtocolError(f"heartbeat of {len(body)} bytes, expected at least {_HEAD.size}")
    *numbers, has_list, listed_count, commit_count, refused_count = _HEAD.unpack_from(body)
    commits_at = _HEAD.size + listed_count * _LISTED.size
    refused_at = commits_at + commit_count * _COMMIT.size
    end = refused_at + refused_count * _LISTED.size
    if end != len(body) or (listed_count and not has_list):
        raise PeerProtocolError(f"heartbeat of {len(body)} bytes, expected {end}")
    listed = tuple(_LISTED.iter_unpack(body[_HEAD.size : commits_at])) if has_list else None
    commits = tuple(_COMMIT.iter_unpack(body[commits_at:refused_at]))
    refused = tuple(_LISTED.iter_unpack(body[refused_at:end]))
    if any(commit < 0 for _, commit in commits):
        raise PeerProtocolError("negative commit index in a heartbeat")
    return Heartbeat._make((*numbers, listed, commits, refused))


class PeerHeartbeat:
    """Both directions of the heartbeat with one peer."""

    def __init__(self, session: int, peer: BrokerId) -> None:
        self._session = session
        self._peer = peer
        # Groups that this broker leads.
        self.unconfirmed: dict[RaftGroup, None] = {}
        """Groups that the peer has not confirmed: they are pinged one by one."""
        self._confirmed: dict[RaftGroup, tuple[Epoch, int]] = {}
        """With the epoch, and the first list version that contains them."""
        self._places: dict[RaftGroup, int] = {}
        self._version = 0
        self._is_changed = True
        self._commits: dict[RaftGroup, None] = {}
        self._number = 0
        self._acknowledged_number = 0
        self._acknowledged_version = 0
        self._last_acknowledged_at = NEVER
        """When the peer last acknowledged a heartbeat."""
        # Groups that the peer leads.
        self._heard_session = 0
        self._heard_number = 0
        self._heard_version = 0
        self._listed: list[RaftGroup | None] = []
        self._epochs: dict[RaftGroup, Epoch] = {}
        self._refused: dict[bytes, Epoch] = {}
        self.last_contact_at = NEVER
        """When the peer's last heartbeat arrived."""

    # ---- leading

    def lead(self, group: RaftGroup) -> None:
        """This broker leads the group, and the peer is a member."""
        self.leave(group)
        self.unconfirmed[group] = None

    def leave(self, group: RaftGroup) -> None:
        """This broker no longer leads the group, or the peer left it."""
        self.unconfirmed.pop(group, None)
        self._commits.pop(group, None)
        if self._confirmed.pop(group, None) is not None:
            self._is_changed = True

    def confirm(self, group: RaftGroup, epoch: Epoch) -> None:
        """The peer responded as a follower."""
        if group in self.unconfirmed:
            del self.unconfirmed[group]
            self._confirmed[group] = (epoch, self._version + 1)
            self._commits[group] = None
            self._is_changed = True

    def note_commit(self, group: RaftGroup) -> None:
        """The commit index advanced, and the peer does not know it yet."""
        self._commits[group] = None

    def commit_sent(self, group: RaftGroup) -> None:
        self._commits.pop(group, None)

    def link_lost(self) -> None:
        """The peer may come back as another process: it has to confirm every group again."""
        for group in self._confirmed:
            self.unconfirmed[group] = None
        self._confirmed.clear()
        self._is_changed = True

    def acknowledged_at(self, group: RaftGroup, epoch: Epoch) -> int:
        """When the peer last acknowledged to follow this group in this epoch, or NEVER."""
        confirmed = self._confirmed.get(group)
        if confirmed is None or confirmed[0] != epoch or confirmed[1] > self._acknowledged_version:
            return NEVER
        return self._last_acknowledged_at

    def compose(self) -> Heartbeat:
        """Build the next heartbeat. The caller sends it, or calls `not_sent`."""
        self._number += 1
        listed: tuple[tuple[bytes, Epoch], ...] | None = None
        if self._is_changed:
            self._is_changed = False
            self._version += 1
            self._places = {group: place for place, group in enumerate(self._confirmed)}
            listed = tuple((group.wire, epoch) for group, (epoch, _) in self._confirmed.items())
        commits = []
        for group in list(self._commits):
            place = self._places.get(group)
            if place is not None and group in self._confirmed:
                commit = group.core.commit
                commits.append((place, commit))
                progress = group.core.progress.get(self._peer)
                # A heartbeat overtakes entries, and the commit of a missing entry is ignored.
                if progress is None or progress.received >= commit:
                    del self._commits[group]
        return Heartbeat(
            self._session,
            self._number,
            self._version,
            self._heard_session,
            self._heard_number,
            self._heard_version,
            listed,
            tuple(commits),
            tuple(self._refused.items()),
        )

    def not_sent(self) -> None:
        """The last heartbeat was dropped: repeat its content in the next one."""
        self._is_changed = True
        self._commits = dict.fromkeys(self._confirmed)

    def take_acknowledgement(
        self, heartbeat: Heartbeat, now: int, groups: Mapping[bytes, RaftGroup]
    ) -> None:
        """Handle the acknowledgement of this broker's heartbeats."""
        if (
            heartbeat.heard_session != self._session
            or heartbeat.heard_number <= self._acknowledged_number
        ):
            return
        self._acknowledged_number = heartbeat.heard_number
        self._acknowledged_version = heartbeat.heard_version
        self._last_acknowledged_at = now
        for wire, epoch in heartbeat.refused:
            group = groups.get(wire)
            if group is not None and self._confirmed.get(group, (NO_EPOCH, 0))[0] == epoch:
                self.lead(group)

    # ---- following

    def take(
        self, heartbeat: Heartbeat, now: int, groups: Mapping[bytes, RaftGroup]
    ) -> list[tuple[RaftGroup, Epoch, RaftIndex]]:
        """Handle the peer's list; returns the commits it sent. Raises PeerProtocolError."""
        if heartbeat.listed is not None:
            self._listed = [groups.get(wire) for wire, _ in heartbeat.listed]
            self._epochs = {}
            self._refused = {}
            self._heard_session = heartbeat.session
            self._heard_version = heartbeat.version
            for (wire, epoch), group in zip(heartbeat.listed, self._listed, strict=True):
                if group is None:
                    self._refused[wire] = epoch
                else:
                    self._epochs[group] = epoch
        elif (heartbeat.session, heartbeat.version) != (self._heard_session, self._heard_version):
            raise PeerProtocolError(f"heartbeat of unknown list version {heartbeat.version}")
        self._heard_number = heartbeat.number
        self.last_contact_at = now
        commits = []
        for place, commit in heartbeat.commits:
            if place >= len(self._listed):
                raise PeerProtocolError(
                    f"heartbeat with a commit for group {place} of {len(self._listed)}"
                )
            group = self._listed[place]
            if group is not None:
                commits.append((group, self._epochs[group], commit))
        return commits

    @property
    def listed(self) -> Iterable[RaftGroup]:
        """The groups that the peer leads, by its last list."""
        return self._epochs.keys()

    def check(self, group: RaftGroup, is_following: Epoch) -> None:
        """The group follows the peer in that epoch now; NO_EPOCH: it does not."""
        epoch = self._epochs.get(group)
        if epoch is None:
            return
        if epoch == is_following:
            self._refused.pop(group.wire, None)
        else:
            self._refused[group.wire] = epoch

    def leader_heard_at(self, group: RaftGroup, epoch: Epoch) -> int:
        """When the peer last announced to lead this group in this epoch, or NEVER."""
        return self.last_contact_at if self._epochs.get(group) == epoch else NEVER

    def peer_disconnected(self) -> None:
        """The peer's connection closed: the next one starts with a list."""
        self._listed, self._epochs, self._refused = [], {}, {}
        self._heard_session = self._heard_number = self._heard_version = 0

    def forget(self, group: RaftGroup) -> None:
        """The group was removed from this broker."""
        self.leave(group)
        if group in self._epochs:
            self._refused[group.wire] = self._epochs.pop(group)
            self._listed = [None if other is group else other for other in self._listed]
