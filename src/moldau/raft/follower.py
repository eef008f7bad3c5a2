"""Owns what a follower does with its leader's messages: match, cut, store, acknowledge.

A follower skips what it has, cuts its log only at the first entry whose epoch differs from the
leader's, never below what is committed and never because a message is short or old: messages
arrive late and twice. It acknowledges what is on its disk, never what is only written.
"""

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.errors import RaftError
from moldau.raft.events import ResetLog, Role, StoreEntries, Truncate
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryInfo,
    InstallSnapshot,
    RaftHeartbeat,
    RaftHeartbeatResponse,
)
from moldau.raft.state import RaftState


class Following(RaftState):
    """A core that can follow."""

    def _follow(self, sender: BrokerId) -> None:
        """A message of the current epoch that only its leader can send."""
        if self.leader == sender and self.role is Role.FOLLOWER:
            self.last_contact_at = self._now
            return
        if self.role is Role.LEADER or self.leader not in (NO_BROKER, sender):
            raise RaftError(f"brokers {self.leader} and {sender} both lead epoch {self.epoch}")
        self._become_follower(self.epoch, sender)

    # ---- entries

    def _on_append(self, sender: BrokerId, message: AppendRequest) -> None:
        self._follow(sender)
        index = message.start
        # Up to the commit every log is the same: nothing to compare, and perhaps already deleted.
        if index > self.commit and (
            index > self.end or self._epoch_before(index) != message.prev_epoch
        ):
            self._refuse(sender, message)
            return
        entries = message.entries
        end = entries[-1].end if entries else index
        stored = self._store(index, entries) if entries else False
        self.verified = max(self.verified, end, self.commit)
        self._learn_commit(message.commit)
        if not stored:
            self._acknowledge(force=True)

    def _refuse(self, sender: BrokerId, message: AppendRequest) -> None:
        """Say where the logs may still agree: the end of an epoch that the leader can have."""
        limit = min(message.start, self.end)
        place = self._end_of_epoch(message.prev_epoch, limit)
        place = max(place, self.commit)
        self._send(
            sender,
            AppendResponse(
                epoch=self.epoch,
                is_accepted=False,
                asked=message.start,
                matched=place,
                flushed=RaftIndex(0),
                hint_epoch=self._epoch_before(place),
                log_id=self.log_id,
            ),
        )

    def _store(self, index: RaftIndex, entries: tuple[EntryInfo, ...]) -> bool:
        """Take over what is new; returns whether there was any."""
        new = 0 if index == self.end else self._first_new(entries)
        if new == len(entries):
            return False
        first = entries[new].start
        if first < self.end:
            self._truncate(first)
        self._emit(StoreEntries(first))
        last = entries[-1]
        self.end = last.end
        self.last_epoch = last.epoch
        for entry in entries[new:]:
            if entry.members is not None:
                self._set_members(entry.start, entry.members)
        return True

    def _first_new(self, entries: tuple[EntryInfo, ...]) -> int:
        """Position of the first entry that this log does not hold."""
        for position, entry in enumerate(entries):
            if entry.end <= self.commit:
                continue
            if entry.start >= self.end or self.log.epoch_of(entry.start) != entry.epoch:
                return position
        return len(entries)

    def _truncate(self, index: RaftIndex) -> None:
        if index < self.commit or index < self.verified:
            raise RaftError(
                f"the leader of epoch {self.epoch} contradicts entry {index}; committed are "
                f"{self.commit}, agreed with it {self.verified}"
            )
        last_epoch = self._epoch_before(index)
        if self.members_index >= index:
            self._set_members(*self.log.members(index))
        self._emit(Truncate(index))
        self.truncations += 1
        self.end = index
        self.last_epoch = last_epoch
        self.flushed = min(self.flushed, index)

    # ---- acknowledging

    def _learn_commit(self, commit: RaftIndex) -> None:
        """The leader committed that much; here only what is known to be the same counts."""
        commit = min(commit, self.verified)
        if commit > self.commit:
            self._advance_commit(commit)

    def _on_flushed_follower(self) -> None:
        if self.leader != NO_BROKER and self.role is Role.FOLLOWER:
            self._acknowledge(force=False)

    def _acknowledge(self, *, force: bool) -> None:
        """Tell the leader what it can count on; without `force` only if that is news."""
        matched = self.verified
        flushed = min(matched, self.flushed)
        if not force and flushed <= self._acked:
            return
        self._acked = flushed
        self._send(
            self.leader,
            AppendResponse(
                epoch=self.epoch,
                is_accepted=True,
                asked=matched,
                matched=matched,
                flushed=flushed,
                hint_epoch=self.epoch,
                log_id=self.log_id,
            ),
        )

    # ---- the rest of what a leader says

    def _on_ping(self, sender: BrokerId, message: RaftHeartbeat) -> None:
        self._follow(sender)
        self._learn_commit(message.commit)
        self._send(sender, RaftHeartbeatResponse(self.epoch, message.round, self.log_id))

    def _on_leader_alive(self, leader: BrokerId, epoch: Epoch, commit: RaftIndex) -> None:
        """As a Ping of the group, but told for all groups of a broker at once."""
        if epoch == self.epoch and leader == self.leader and self.role is Role.FOLLOWER:
            self.last_contact_at = self._now
            self._learn_commit(commit)

    def _on_peer_ended(self, peer: BrokerId) -> None:
        """As if the leader had been silent for the shortest election time: others get votes, and
        the random rest of it keeps the followers apart."""
        if peer == self.leader and self.role is Role.FOLLOWER:
            self.last_contact_at = min(
                self.last_contact_at, self._now - self.config.election_ms_min
            )

    def _on_snapshot(self, sender: BrokerId, message: InstallSnapshot) -> None:
        self._follow(sender)
        index = message.start
        if index > self.commit:
            if index <= self.end and self._epoch_before(index) == message.last_epoch:
                self.verified = max(self.verified, index)
                self._advance_commit(index)
            else:
                self._reset(message)
        self.verified = max(self.verified, self.commit)
        self._acknowledge(force=True)

    def _reset(self, message: InstallSnapshot) -> None:
        """Nothing of the old log is needed: all below the snapshot is committed elsewhere."""
        self._before_reset = (message.start, self.commit, self.verified)
        self._emit(ResetLog(message.start))
        self.truncations += 1
        self.end = self.flushed = message.start
        self.last_epoch = message.last_epoch
        self.verified = message.start
        self._set_members(RaftIndex(-1), message.members)
        self._advance_commit(message.start)
